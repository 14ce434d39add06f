"""Commands take the options of their calls as parameters, by the declaration."""

import inspect

import pytest
import typer

from icechunk_format.command_line.app import app
from icechunk_format.options.keywords import keyword_options

CALLS = ["delete", "rechunk", "reduce", "virtualize", "mirror"]
LEFT = ("storage_client", "virtual_authorize", "virtual_credentials", "spec_version")
COMMANDS = typer.main.get_command(app).commands


@pytest.mark.parametrize("call", CALLS)
def test_a_command_has_the_options_of_its_call(call):
    options = {option.keyword: option for option in keyword_options(call)}
    flags = {one.name: one for one in COMMANDS[call].params}
    assert options.keys() - flags.keys() <= {*LEFT}
    for name in options.keys() & flags.keys() - {"branch"}:
        assert f"--{name.replace('_', '-')}" in flags[name].opts
        words = inspect.cleandoc(flags[name].help)
        assert options[name].shown_type.replace("`", "'") in words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("rechunk", "URL", "--chunks", "x=1", "-o", "where=x"),
            "does not apply to rechunk: it is",
        ),
        (("delete", "URL", "-o", "tag=v1", "--dry-run"), "does not apply to delete: it is for"),
        (("delete", "URL", "--on-conflict", "never", "--dry-run"), "option 'onConflict' must be"),
        (("delete", "URL", "--txn-version", "5", "--dry-run"), "set 'txn_app_id' as well"),
        (("mirror", "URL", "t", "-o", "layout=refs"), "does not apply to mirror: it is for"),
        (("rewrite-manifests", "URL", "-o", "tag=v1"), "does not apply to rewrite-manifests"),
    ],
)
def test_errors_name_the_command(words, message, command, tmp_path):
    done = command(*(str(tmp_path / "r") if word == "URL" else word for word in words))
    assert done.code == 2
    assert message in done.err
