"""A terminal shows how far long work is; a pipe and a script get the answer alone."""

import pytest

from icechunk_format.command_line.views.screen import Screen


@pytest.fixture
def terminal(monkeypatch):
    """Let output be taken for that of a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("verify", "URL"), "Checking manifests"),
        (("gc", "URL", "--older-than", "1d", "--dry-run"), "Listing chunks/"),
        (("log", "URL", "--changes"), "Reading changes"),
        (("tree", "URL"), "Counting chunks"),
    ],
)
def test_terminals_show_the_phase(command, weather, terminal, words, shown):
    outcome = command(*(weather.url if word == "URL" else word for word in words))
    assert shown in outcome.err


def test_pipes_get_the_answer_alone(command, weather):
    assert command("verify", weather.url).err == ""
    assert command("tree", weather.url).err == ""


def test_counts_with_and_without_an_end_are_shown(capsys, terminal):
    with Screen(as_json=False).working("Working") as progress:
        progress(3, 1_234, "Copying \x1b[31m[red]")
        progress(5_678, None, "Listing")
        progress(7, 7, "Copying")
    shown = capsys.readouterr().err
    assert "Copying" in shown
    assert "7/7" in shown
