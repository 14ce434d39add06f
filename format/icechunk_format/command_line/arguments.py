"""Declares and parses arguments shared by commands: repository, options, snapshot, age.

Rules of this file
------------------
1. Options have the same names as in Spark. Those of a call, such as ``rechunk``, are parameters of
   its command, by their declaration.
2. Values of options never appear in messages: they may be credentials.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icechunk_format.errors import InvalidInputError
from icechunk_format.names import shown
from icechunk_format.options.declare import WRITING
from icechunk_format.options.keywords import keyword_options, parse_arguments
from icechunk_format.options.values import parse_boolean
from icechunk_format.storage.options import SECRET_WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from icechunk_format.encoding.ids import SnapshotId
    from icechunk_format.options.declare import Call as OptionCall
    from icechunk_format.repository import RepositoryReader
    from icechunk_format.storage.location import Location

RepositoryArgument = Annotated[
    str, typer.Argument(metavar="REPOSITORY", help="Path or URL of the repository.")
]
OptionOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="Option of the storage, named as in Spark: storage.region=us-west-2,"
        " storage.anon=true, ... Repeatable. Prefer the environment for credentials.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document, for scripts.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for a confirmation.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")]
BranchOption = Annotated[
    str | None, typer.Option("--branch", "-b", metavar="NAME", help="Branch; main is the default.")
]
TagOption = Annotated[str | None, typer.Option("--tag", "-t", metavar="NAME", help="Tag.")]
GroupOption = Annotated[
    str | None, typer.Option("--group", "-g", metavar="PATH", help="Group: /model.")
]
OlderThanOption = Annotated[
    str,
    typer.Option(
        "--older-than",
        metavar="AGE",
        help="An age, such as 30d, 12h or 4w, or a time, such as 2026-01-31T00:00:00Z.",
    ),
]
MessageOption = Annotated[
    str | None, typer.Option("--message", "-m", metavar="TEXT", help="Commit message.")
]
MemoryOption = Annotated[
    str, typer.Option(metavar="SIZE", help="Maximum size of values in memory.")
]


@dataclass(frozen=True)
class SnapshotChoice:
    """The options that select one snapshot."""

    branch: BranchOption = None
    tag: TagOption = None
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", "-s", metavar="ID", help="Snapshot, or the start of its id."),
    ] = None
    as_of: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Newest snapshot of the branch at a time or age (2d)."),
    ] = None

    @property
    def is_given(self) -> bool:
        """Return True if an option is given."""
        return self != SnapshotChoice()

    def resolve(self, repository: RepositoryReader) -> SnapshotId:
        """Return the snapshot, as ``Repository.resolve``."""
        from icechunk_format.repository.history import parse_cutoff

        as_of = None if self.as_of is None else parse_cutoff(self.as_of, argument="--as-of")
        snapshot = None if self.snapshot is None else whole_id(repository, self.snapshot)
        return repository.resolve(branch=self.branch, tag=self.tag, snapshot=snapshot, as_of=as_of)


_SHORT_ID: Final = re.compile(r"[0-9A-HJKMNP-TV-Z]{4,19}", re.ASCII)
_SHORTEST_SECRET: Final = 4


# Options of a call that commands take only in --option.
_IN_OPTION: Final = (
    *("storage_client", "virtual_authorize", "virtual_credentials", "spec_version"),
)
_SHORT: Final = {"branch": "-b", "group": "-g", "message": "-m", "snapshot": "-s", "tag": "-t"}


def declared_parameters(
    takes: OptionCall, own: Sequence[str], names: Sequence[str] | None = None
) -> list[inspect.Parameter]:
    """Return the options of a call as parameters of a command that does not have them as its own.

    `names` are the keywords of these options, by default all.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    found = []
    for option in keyword_options(takes):
        name = option.keyword
        is_left = name in _IN_OPTION if names is None else name not in names
        if is_left or name in own:
            continue
        about = option.write_help if takes in WRITING and option.write_help else option.help
        default = f"; default: {option.shown_default}" if option.shown_default else ""
        shown = f"{about.partition('. ')[0].removesuffix('.')} ({option.shown_type}{default})."
        shown = shown.replace("`", "'")
        flag = f"--{name.replace('_', '-')}"
        short = [_SHORT[name]] if name in _SHORT else []
        annotation: Any = (
            Annotated[bool | None, typer.Option(f"{flag}/--no{flag[1:]}", help=shown)]
            if option.parse is parse_boolean
            else Annotated[str | None, typer.Option(flag, *short, metavar="VALUE", help=shown)]
        )
        found.append(inspect.Parameter(name, kind, annotation=annotation, default=None))
    return found


def given_strings(
    given: Sequence[str] | None, takes: OptionCall, command: str = ""
) -> dict[str, str]:
    """Return the ``--option`` arguments of a command, which takes the options of a call."""
    from icechunk_format.options.parse import meaningless, option_named

    pairs = _pairs(given, "--option", "storage.region")
    for name in pairs:
        found = option_named(name)
        if found is not None and takes not in found[0].calls:
            raise meaningless(found[0], takes, command)
    return pairs


def parse_table_options(given: Sequence[str] | None) -> dict[str, str]:
    """Parse the ``--target-option`` arguments of a Delta table, named as in deltalake."""
    return _pairs(given, "--target-option", "AWS_REGION")


def _pairs(given: Sequence[str] | None, what: str, example: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in given or ():
        name, equals, value = item.partition("=")
        if not equals:
            raise InvalidInputError(
                f"a value of {what} has no '='; write it as NAME=VALUE, such as {example}=us-west-2"
            )
        if name.strip() in found:
            raise InvalidInputError(f"{what} {name.strip()} is given twice; give it once")
        found[name.strip()] = value
    return found


def location_at(repository: str, given: Sequence[str] | None) -> Location:
    """Return the location of a repository with its storage options."""
    from icechunk_format.options.location import location_of

    strings = given_strings(given, "maintenance", "a repository")
    return location_of(parse_arguments(repository, strings, "maintenance"))


def json_or_word(string: str) -> Any:
    """Parse JSON; a string that is not JSON is a word, returned unchanged."""
    try:
        return json.loads(string)
    except RecursionError:
        raise InvalidInputError(f"the JSON value {shown(string)} is nested too deeply") from None
    except ValueError:
        return string


def parse_past(string: str, *, argument: str) -> datetime:
    """Parse an age or a time in the past to a timestamp."""
    from icechunk_format.repository.history import parse_cutoff

    now = datetime.now(UTC)
    timestamp = parse_cutoff(string, argument=argument, now=now)
    if timestamp > now:
        raise InvalidInputError(
            f"{argument} {string!r} is in the future; give an age or a time in the past",
            argument=argument,
        )
    return timestamp


def whole_id(repository: RepositoryReader, string: str) -> str:
    """Complete an abbreviated snapshot id; return the string if no id begins with it."""
    short = string.upper()
    if _SHORT_ID.fullmatch(short) is None:
        return string
    found = sorted({str(info.id) for info in repository.snapshots()})
    found = [known for known in found if known.startswith(short)]
    if len(found) > 1:
        raise InvalidInputError(
            f"{len(found)} snapshots of {repository.location} begin with {string!r}, such as"
            f" {found[0]} and {found[1]}; give more characters",
            found=string,
        )
    return found[0] if found else string


def node_path(string: str) -> str:
    """Return the path of a node; one without a slash at its start is below the root."""
    return string if string.startswith("/") or not string.strip() else f"/{string}"


def resolve_name(repository: RepositoryReader, name: str) -> SnapshotId:
    """Resolve a branch, a tag, or an abbreviated id to a snapshot."""
    from icechunk_format.tables import resolve_change

    if name not in repository.branches() and name not in repository.tags():
        name = whole_id(repository, name)
    # With equal ends, the snapshot needs no parent.
    return resolve_change(repository, older=name, newer=name)[1]


def secrets_in(arguments: Sequence[str]) -> list[str]:
    """Return the values in arguments that may be credentials, to remove them from messages."""
    found = set()
    for argument in arguments:
        # An option may be one argument or two, so any "=" may be the separator.
        for match in re.finditer("=", argument):
            value = argument[match.end() :]
            if len(value) >= _SHORTEST_SECRET and SECRET_WORDS.search(argument[: match.start()]):
                found.add(value)
    return sorted(found, key=len, reverse=True)
