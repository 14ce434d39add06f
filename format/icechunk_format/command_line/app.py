"""The commands of ``icechunk-spark``, in the order of ``--help``."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Annotated, Final

import typer

from icechunk_format.command_line import inspect_commands, ref_commands, upkeep_commands
from icechunk_format.command_line.exit_codes import exit_codes_text

_EPILOG: Final = f"""\b
Exit codes:
{exit_codes_text()}
"""

app: Final = typer.Typer(
    name="icechunk-spark",
    help="Look at Icechunk repositories and look after them.",
    epilog=_EPILOG,
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"icechunk-spark {importlib.metadata.version('icechunk-spark')}")
        raise typer.Exit


@app.callback()
def options_of_all_commands(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where in the code an error comes from.")
    ] = False,
) -> None:
    """Look at Icechunk repositories and look after them.

    Credentials come from the environment, as for any client of the store, or by --option.
    """


_COMMANDS: Final[tuple[Callable[..., None], ...]] = (
    inspect_commands.log,
    inspect_commands.show,
    inspect_commands.tree,
    inspect_commands.diff,
    inspect_commands.operations,
    ref_commands.reset,
    upkeep_commands.expire,
    upkeep_commands.gc,
    upkeep_commands.upgrade,
)
for _command in _COMMANDS:
    app.command()(_command)
app.add_typer(ref_commands.branch_app, name="branch")
app.add_typer(ref_commands.tag_app, name="tag")
