"""Every option and argument of every command refuses wrong values without a raw error."""

from __future__ import annotations

import pytest
import typer

from icechunk_format.command_line.app import app

WRONG = [
    *("", " ", "-1", "0", "9" * 20, "9" * 5_000, "1e400", "nan", "yes", "None", "x=1", "=", "é"),
    *("[" * 3_000, "{}", "[5]", "null", '{"a": {}}', "x" * 10_000, "\ud800", "\udcff", "\x00"),
    *("http://[", "s3://", "/", "..", "../..", "/nowhere", "nowhere", "a,,b", "time=", "a@b#c"),
]
# Valid arguments of a command, by name.
RIGHT = {
    "path": "/t2m",
    "values": "a=1",
    "names": "a",
    "new_path": "/other",
    "setting": "compression.level",
    "value": "3",
    "ref": "main",
    "older": "v1",
    "name": "made",
    "older_than": "1d",
    "chunks": "time=2",
}


def leaves(command, words=()):
    """Yield the commands below a group, each with its words."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, (*words, name))
    if not hasattr(command, "commands"):
        yield words, command


COMMANDS = dict(leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("words", sorted(COMMANDS), ids=" ".join)
def test_wrong_values_raise_errors_of_the_project(
    words, command, weather_on_disk, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    raw = []
    parameters = [one for one in COMMANDS[words].params if not getattr(one, "is_flag", False)]
    for wrong in parameters:
        for value in WRONG:
            given = []
            for one in parameters:
                if one is wrong:
                    text = value
                elif not one.required:
                    continue
                else:
                    text = RIGHT.get(one.name, weather_on_disk.url)
                given += (
                    [f"{max(one.opts, key=len)}={text}"]
                    if one.param_type_name == "option"
                    else [text]
                )
            flags = [one.opts[0] for one in COMMANDS[words].params if "--dry-run" in one.opts]
            done = (
                command(*words, *flags, "--", *given)
                if not any(g.startswith("--") for g in given)
                else command(*words, *flags, *given)
            )
            if "unexpected;" in done.err or len(done.err) > 8_000:
                raw.append(f"{wrong.name}={value[:20]!r}: {done.err[:200]}")
    assert not raw, "\n".join(raw)
