"""Texts from a repository can neither act on a terminal nor pass for something else.

A repository that somebody else wrote is opened: its messages, names and attributes hold escape
sequences, markup and characters that reverse or hide text.
"""

import json
from dataclasses import replace

import pytest
from helpers.files.hostile_texts import NAME, NASTY, RED, check_printable, hostile_repository

from icechunk_format.repository import Repository


@pytest.fixture(scope="module")
def nasty():
    url = "memory://command-line-nasty"
    hostile_repository(url)
    return url


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
    check_printable(outcome.out)
    check_printable(outcome.err)


@pytest.mark.parametrize("words", COMMANDS[:9], ids=lambda words: words[0][:8])
def test_scripts_get_the_exact_text_in_plain_ascii(command, nasty, words):
    words = [word for word in words if word != "--attributes"]
    outcome = command(*(nasty if word == "URL" else word for word in words), "--json")
    assert outcome.out.isascii()
    check_printable(outcome.out)
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


def test_a_commit_from_the_end_of_time_is_shown(command, monkeypatch):
    repository = Repository.create("memory://command-line-late")
    infos = repository.snapshots()
    late = [replace(info, flushed_at=2**64 - 1) for info in infos]
    monkeypatch.setattr(Repository, "ancestry", lambda *_, **__: iter(late))
    outcome = command("log", "memory://command-line-late")
    assert outcome.code == 0
    assert "9999-12-31 23:59:59 UTC (in the future)" in outcome.out
