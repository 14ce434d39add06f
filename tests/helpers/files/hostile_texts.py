"""Texts that act on terminals and pages, and a repository that holds them everywhere."""

import unicodedata

from helpers.grids.weather_repository import add_array, group_document

from icechunk_format.repository import Repository

RED = "\x1b[31m[red]red[/red]\x1b[0m"
TITLE = "\x1b]0;owned\x07"
LINK = "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\"
REVERSED = "\u202egpj.exe\u2066"
C1 = "\x9b31m\x85"
NASTY = f"{RED}{TITLE}{LINK}{REVERSED}{C1}\rover\x08\x00"
# Names of nodes hold no NUL, by the format.
NAME = f"{RED}{TITLE}{REVERSED}".replace("/", "_")


def hostile_repository(url):
    """Write a repository full of them; return it."""
    repository = Repository.create(url)
    session = repository.writable_session()
    session.create_group("/", group_document(**{NASTY: NASTY}))
    session.create_group(f"/{NAME}", group_document())
    attributes = {"units": NASTY, "list": [NASTY, {NASTY: NASTY}], "number": float("inf")}
    add_array(session, f"/{NAME}/{NAME}", (2,), (1,), dims=(NASTY,), attributes=attributes)
    first = session.commit(f"{NASTY}\n{NASTY}", metadata={NASTY: NASTY}).snapshot_id
    repository.create_branch(NASTY.replace("\x00", ""), first)
    repository.create_tag("t" + RED, first)
    repository.create_tag("u" + RED, first)
    repository.delete_tag("u" + RED)
    session = repository.writable_session()
    session.update_metadata(f"/{NAME}", group_document(**{NASTY: 1}))
    session.commit(NASTY)
    return repository


def check_printable(text):
    """Fail where a character acts rather than prints."""
    for character in text.replace("\n", ""):
        assert unicodedata.category(character)[0] != "C", repr(character)
        assert character not in "\u2028\u2029"
