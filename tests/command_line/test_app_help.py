"""``--help`` and the manual name the same commands and options, and all of them."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from icechunk_format.command_line.app import COMMANDS, app
from icechunk_format.command_line.exit_codes import ExitCode
from icechunk_format.command_line.views.documents import document_keys

MANUAL = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"


def commands_markdown():
    """Return the manual's list of commands."""
    lines = ["| command | what it does |", "|---|---|"]
    for words, command in COMMANDS.items():
        about = (command.__doc__ or "").partition("\n")[0]
        lines.append(f"| `{words}` | {about} |")
    return "\n".join(lines) + "\n"


def exit_codes_markdown():
    """Return the manual's table of exit codes."""
    lines = ["| exit code | meaning |", "|---|---|"]
    lines += [f"| {code.value} | {code.meaning} |" for code in ExitCode]
    return "\n".join(lines) + "\n"


def help_of(*words):
    outcome = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "100"})
    assert outcome.exit_code == 0
    return outcome.output


def listed(text):
    """Return the commands that a help page lists, with what it says about each."""
    lines = text.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    return dict(re.split(r"  +", line.strip(), maxsplit=1) for line in lines)


def test_the_manual_lists_the_commands_of_help():
    text = MANUAL.read_text(encoding="utf-8")
    assert f"<!-- commands -->\n{commands_markdown()}<!-- /commands -->" in text
    shown = {}
    for name, about in listed(help_of()).items():
        inside = {words for words in COMMANDS if words.startswith(f"{name} ")}
        found = listed(help_of(name)) if inside else {}
        shown |= {f"{name} {inner}": text for inner, text in found.items()} or {name: about}
    in_manual = dict(re.findall(r"^\| `([^`]+)` \| ([^|]*) \|$", commands_markdown(), re.MULTILINE))
    assert shown == in_manual


def test_the_manual_lists_the_exit_codes_of_help():
    text = MANUAL.read_text(encoding="utf-8")
    assert f"<!-- exit codes -->\n{exit_codes_markdown()}<!-- /exit codes -->" in text
    page = " ".join(help_of().split())
    for code in ExitCode:
        assert f" {code.value} {code.meaning}" in page


def test_commands_in_the_manual_exist():
    text = MANUAL.read_text(encoding="utf-8")
    called = re.findall(r"icechunk-spark ([a-z][a-z-]*(?: (?:list|create|delete|show|set))?)", text)
    names = {words.split()[0] for words in COMMANDS}
    assert called
    assert {words.split()[0] for words in called} <= names


@pytest.mark.parametrize("words", COMMANDS)
def test_the_help_of_each_command_names_its_options_and_its_json(words):
    page = help_of(*words.split())
    assert "--option" in page
    assert "--json" in page
    for key in document_keys(words):
        assert re.search(rf"^    {key}: ", page, re.MULTILINE)
    # Markup and cut sentences would show here.
    assert "``" not in page
    assert "..." not in (COMMANDS[words].__doc__ or "").partition("\n")[0]
    assert len(page.splitlines()) < 110


def test_a_bare_command_shows_help(command):
    for words in ((), ("branch",), ("config",)):
        outcome = command(*words)
        assert (outcome.code, outcome.out) == (2, "")
        assert "Usage: icechunk-spark" in outcome.err
    assert command("--version").out.startswith("icechunk-spark ")
