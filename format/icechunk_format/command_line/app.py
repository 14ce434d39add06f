"""Lists the commands of ``icechunk-spark``, in the order of ``--help``."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from icechunk_format.command_line.arguments import RepositoryArgument
from icechunk_format.command_line.call import on_repository
from icechunk_format.command_line.commands import catalog as catalog_commands
from icechunk_format.command_line.commands import config as config_commands
from icechunk_format.command_line.commands import edit as edit_commands
from icechunk_format.command_line.commands import inspect as inspect_commands
from icechunk_format.command_line.commands import maintenance as maintenance_commands
from icechunk_format.command_line.commands import reducing as reducing_commands
from icechunk_format.command_line.commands import refs as ref_commands
from icechunk_format.command_line.commands import rows as row_commands
from icechunk_format.command_line.commands import transfer as transfer_commands
from icechunk_format.command_line.commands import verify as verify_command
from icechunk_format.command_line.exit_codes import exit_codes_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from icechunk_format.options.declare import Call as OptionCall

_EPILOG: Final = f"""\b
Exit codes:
{exit_codes_text()}
"""

app: Final = typer.Typer(
    name="icechunk-spark",
    help="Inspect and maintain Icechunk repositories.",
    epilog=_EPILOG,
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=True,
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
        bool, typer.Option("--traceback", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Inspect and maintain Icechunk repositories.

    Credentials come from the environment, as for any client of the storage, or from --option.
    """


def _sub_app(name: str, about: str) -> typer.Typer:
    made = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help=about)
    app.add_typer(made, name=name)
    return made


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "log": inspect_commands.log,
    "show": inspect_commands.show,
    "tree": inspect_commands.tree,
    "head": row_commands.head,
    "diff": inspect_commands.diff,
    "operations": inspect_commands.operations,
    "applications": inspect_commands.applications,
    "explain": row_commands.explain,
    "branch list": ref_commands.list_branches,
    "branch create": ref_commands.create_branch,
    "branch delete": ref_commands.delete_branch,
    "branch fast-forward": ref_commands.fast_forward,
    "tag list": ref_commands.list_tags,
    "tag create": ref_commands.create_tag,
    "tag delete": ref_commands.delete_tag,
    "merge": ref_commands.merge,
    "cherry-pick": ref_commands.cherry_pick,
    "reset": ref_commands.reset,
    "restore": ref_commands.restore,
    "attrs set": edit_commands.set_attributes,
    "attrs unset": edit_commands.unset_attributes,
    "rename": edit_commands.rename,
    "drop": edit_commands.drop,
    "delete": row_commands.delete,
    "verify": verify_command.verify,
    "expire": maintenance_commands.expire,
    "gc": maintenance_commands.gc,
    "rewrite-manifests": maintenance_commands.rewrite_manifests,
    "upgrade": maintenance_commands.upgrade,
    "copy": transfer_commands.copy,
    "import-draft": transfer_commands.import_draft,
    "rechunk": transfer_commands.rechunk,
    "reduce": reducing_commands.reduce,
    "virtualize": row_commands.virtualize,
    "mirror": transfer_commands.mirror,
    "freshness": transfer_commands.freshness,
    "catalog check": catalog_commands.check,
    "catalog list": catalog_commands.list_tables,
    "config show": config_commands.show_config,
    "config set": config_commands.set_config,
}
"""Functions of the commands, by command."""


class _Command(TyperCommand):
    """A command whose help ends with the keys of its document."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Add the keys of the document and their meanings."""
        from icechunk_format.command_line.views.documents import keys_text

        # The control character (backspace) prevents the parser from rewrapping the lines.
        self.epilog = f"\b\n{keys_text(ctx.command_path.partition(' ')[2])}"
        super().format_epilog(ctx, formatter)


_ARGUMENTS: Final = {
    "copy": transfer_commands.CopiedArgument,
    "import-draft": transfer_commands.DraftArgument,
    "freshness": transfer_commands.TableArgument,  # the table records its repository
    "catalog check": catalog_commands.CatalogArgument,
    "catalog list": catalog_commands.CatalogArgument,
}
_OF_CELLS: Final = ("credentials", "group", "variables", "where", "sel", "sel_method", "isel")
# The calls whose options commands take, and the keywords of these options, by default all.
_TAKES: Final[dict[str, tuple[OptionCall, tuple[str, ...] | None]]] = {
    "head": ("read", _OF_CELLS),
    "explain": ("read", (*_OF_CELLS, "layout")),
    "merge": ("merge", None),
    "cherry-pick": ("merge", None),
    "delete": ("delete", None),
    "verify": ("verify", None),
    "rechunk": ("rechunk", None),
    "reduce": ("reduce", None),
    "virtualize": ("virtualize", None),
    "mirror": ("mirror", None),
}
_APPS: Final = {
    "": app,
    "branch": _sub_app("branch", "List, create, move and delete branches."),
    "tag": _sub_app("tag", "List, create and delete tags."),
    "attrs": _sub_app("attrs", "Set and remove attributes of groups and arrays."),
    "catalog": _sub_app("catalog", "Check and list the tables of a catalog."),
    "config": _sub_app("config", "Show and change the stored configuration."),
}
for _words, _command in COMMANDS.items():
    _group, _, _name = _words.rpartition(" ")
    _takes, _keywords = _TAKES.get(_words, ("maintenance", None))
    _run = on_repository(_command, _ARGUMENTS.get(_words, RepositoryArgument), _takes, _keywords)
    _APPS[_group].command(_name, cls=_Command)(_run)
