"""Texts from a repository can neither act on a terminal nor pass for something else.

A repository that somebody else wrote is opened: its messages, names and attributes hold escape
sequences, markup and characters that reverse or hide text.
"""

import json
import unicodedata
from dataclasses import replace

import pytest
from helpers.grids.weather_repository import add_array, group_document
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.command_line.views.plain_text import (
    one_line,
    safe,
    safe_lines,
    shown_value,
    size,
)
from icechunk_format.repository.repository import Repository

RED = "\x1b[31m[red]red[/red]\x1b[0m"
TITLE = "\x1b]0;owned\x07"
LINK = "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\"
REVERSED = "\u202egpj.exe\u2066"
C1 = "\x9b31m\x85"
NASTY = f"{RED}{TITLE}{LINK}{REVERSED}{C1}\rover\x08\x00"
# Names of nodes hold no NUL, by the format.
NAME = f"{RED}{TITLE}{REVERSED}".replace("/", "_")


@pytest.fixture(scope="module")
def nasty():
    """Return the URL of a repository full of it, and a snapshot of it."""
    url = "memory://command-line-nasty"
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
    return url


def check(text):
    for character in text.replace("\n", ""):
        assert unicodedata.category(character)[0] != "C", repr(character)
        assert character not in "\u2028\u2029"


COMMANDS = [
    ["log", "URL"],
    ["show", "URL"],
    ["tree", "URL", "--attributes"],
    ["diff", "URL", "1CECHNKREP0F1RSTCMT0"],
    ["operations", "URL"],
    ["branch", "list", "URL"],
    ["tag", "list", "URL"],
    ["verify", "URL"],
    ["config", "show", "URL"],
    # Errors repeat names, too.
    ["tree", "URL", "--branch", NASTY],
    ["tree", "URL", "--group", "/" + NASTY],
    ["tag", "create", "URL", "t" + RED],
    ["nope" + NASTY, "URL"],
    ["log", "URL", "--" + RED],
    ["log", "URL", "--option", NASTY + "=x"],
    ["show", "memory://" + RED],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0][:8])
def test_no_command_lets_a_control_character_through(command, nasty, words):
    outcome = command(*(nasty if word == "URL" else word for word in words))
    check(outcome.out)
    check(outcome.err)


@pytest.mark.parametrize("words", COMMANDS[:9], ids=lambda words: words[0][:8])
def test_scripts_get_the_exact_text_in_plain_ascii(command, nasty, words):
    words = [word for word in words if word != "--attributes"]
    outcome = command(*(nasty if word == "URL" else word for word in words), "--json")
    assert outcome.out.isascii()
    check(outcome.out)
    if words[0] == "log":
        found = json.loads(outcome.out)["snapshots"][0]
        assert found["message"] == NASTY
    if words[0] == "tree":
        nodes = json.loads(outcome.out)["nodes"]
        assert nodes[0]["attributes"] == {NASTY: NASTY}
        assert nodes[-1]["path"] == f"/{NAME}/{NAME}"
        assert nodes[-1]["attributes"]["number"] == "Infinity"


def test_markup_is_shown_as_it_is(command, nasty):
    for words in COMMANDS[:3]:
        text = command(*(nasty if word == "URL" else word for word in words)).out
        assert "\\x1b[31m[red]red[/red]" in text or "\\x1b[31m[red]red[_red]" in text


@given(st.text())
def test_safe_text_prints_and_differs_where_texts_differ(text):
    check(safe(text))
    assert safe(text).isprintable()
    assert "\n" not in safe(text)
    for line in safe_lines(text):
        assert line.isprintable()
    assert one_line(text).isprintable()
    assert shown_value({text: [text, None, True, 1.5]}).isprintable()
    if text.isprintable():
        assert safe(text) == text


def test_ordinary_words_of_all_languages_stay():
    for text in ("Größe", "温度", "درجة الحرارة", "température 🌡", "a b"):
        assert safe(text) == text


def test_lines_of_a_message():
    assert safe_lines("\n\n one\r\n\ttwo\n\nthree\n\n") == [" one", "    two", "", "three"]
    assert safe_lines("") == []


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (99_950, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (2**63, "9.2 EB"),
        (None, "?"),
    ],
)
def test_sizes(count, text):
    assert size(count) == text


def test_a_commit_from_the_end_of_time_is_shown(command, monkeypatch):
    repository = Repository.create("memory://command-line-late")
    infos = repository.snapshots()
    late = [replace(info, flushed_at=2**64 - 1) for info in infos]
    monkeypatch.setattr(Repository, "ancestry", lambda *_, **__: iter(late))
    outcome = command("log", "memory://command-line-late")
    assert outcome.code == 0
    assert "9999-12-31 23:59:59 UTC (in the future)" in outcome.out
