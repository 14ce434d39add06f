"""Declares and parses the arguments that commands share: repository, options, snapshot, age.

Rules of this file
------------------
1. Options have the same names as in Spark, so that they can be copied.
2. The value of an option never enters a message: it may be a credential.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icechunk_format.repository.reader import RepositoryReader
    from icechunk_format.spec.ids import SnapshotId
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
SnapshotOption = Annotated[
    str | None,
    typer.Option("--snapshot", "-s", metavar="ID", help="Snapshot, or the beginning of its id."),
]
AsOfOption = Annotated[
    str | None,
    typer.Option(
        "--as-of", metavar="TIME", help="Newest snapshot of the branch at a time or age (2d)."
    ),
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

_SHORT_ID: Final = re.compile(r"[0-9A-HJKMNP-TV-Z]{4,19}", re.ASCII)
_STORAGE, _VIRTUAL, _AUTHORIZE = "storage.", "virtual.storage.", "virtual.authorize"
_CLIENT: Final = "storage.client"
_PREFIXES: Final = (_STORAGE, _VIRTUAL, _AUTHORIZE)
_SHORTEST_SECRET: Final = 4
_SECRET: Final = re.compile("key|secret|token|password|connection|credential", re.IGNORECASE)


@dataclass(frozen=True, slots=True, repr=False)
class GivenOptions:
    """The parsed ``--option`` arguments of a command; values are never shown."""

    storage: dict[str, str]
    """``storage.*`` without that prefix and without ``client``."""
    client: str
    virtual: dict[str, str]
    """``virtual.storage.*`` without that prefix."""
    authorize: tuple[str, ...]
    """URL prefixes from which virtual chunks may be fetched."""

    def location(self, repository: str) -> Location:
        """Return the location of a repository, with its options."""
        from icechunk_format.storage.location import Location

        # Location refuses unknown clients.
        client: Any = self.client
        return Location(repository, client=client, options=self.storage)


def parse_options(given: Sequence[str] | None) -> GivenOptions:
    """Parse the ``--option`` arguments."""
    storage: dict[str, str] = {}
    virtual: dict[str, str] = {}
    single: dict[str, str] = {}
    for name, value in _pairs(given, "an --option", "storage.region"):
        plain = name.lower().replace("_", "-")
        if plain in (_CLIENT, _AUTHORIZE):
            target, key = single, plain
        elif plain.startswith(_VIRTUAL) and len(plain) > len(_VIRTUAL):
            target, key = virtual, name[len(_VIRTUAL) :]
        elif plain.startswith(_STORAGE) and len(plain) > len(_STORAGE):
            target, key = storage, name[len(_STORAGE) :]
        else:
            raise _unknown_option(name)
        if key in target:
            raise InvalidInputError(f"--option {name} is given twice; give it once")
        target[key] = value
    prefixes = (part.strip() for part in single.get(_AUTHORIZE, "").split(","))
    return GivenOptions(
        storage=storage,
        client=single.get(_CLIENT, "auto"),
        virtual=virtual,
        authorize=tuple(part for part in prefixes if part),
    )


def parse_table_options(given: Sequence[str] | None) -> dict[str, str]:
    """Parse the ``--target-option`` arguments of a Delta table, whose names are deltalake's."""
    found: dict[str, str] = {}
    for name, value in _pairs(given, "a --target-option", "AWS_REGION"):
        if name in found:
            raise InvalidInputError(f"--target-option {name} is given twice; give it once")
        found[name] = value
    return found


def _pairs(given: Sequence[str] | None, what: str, example: str) -> Iterator[tuple[str, str]]:
    for item in given or ():
        name, equals, value = item.partition("=")
        if not equals:
            raise InvalidInputError(
                f"{what} has no '='; write it as NAME=VALUE, such as {example}=us-west-2"
            )
        yield name.strip(), value


def _unknown_option(name: str) -> InvalidInputError:
    near = difflib.get_close_matches(name, _PREFIXES, n=1, cutoff=0.3)
    guess = near[0] if near else _STORAGE
    return InvalidInputError(
        f"--option {name!r} does not exist; did you mean {guess!r}? Options of the storage begin"
        " with 'storage.', those of virtual chunks are 'virtual.authorize' and"
        " 'virtual.storage.*'",
        option=name,
    )


def parse_past(text: str, *, argument: str) -> datetime:
    """Return the timestamp of an age or a time, which must not be in the future."""
    from icechunk_format.repository.history.cutoff import parse_cutoff

    now = datetime.now(UTC)
    timestamp = parse_cutoff(text, argument=argument, now=now)
    if timestamp > now:
        raise InvalidInputError(
            f"{argument} {text!r} is in the future; give an age or a time in the past",
            argument=argument,
        )
    return timestamp


def resolve_snapshot(
    repository: RepositoryReader,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    as_of: str | None = None,
) -> SnapshotId:
    """Return the snapshot that the options of a command select; see ``Repository.resolve``."""
    from icechunk_format.repository.history.cutoff import parse_cutoff

    timestamp = None if as_of is None else parse_cutoff(as_of, argument="--as-of")
    if snapshot is not None:
        snapshot = whole_id(repository, snapshot)
    return repository.resolve(branch=branch, tag=tag, snapshot=snapshot, as_of=timestamp)


def whole_id(repository: RepositoryReader, text: str) -> str:
    """Return the snapshot id that begins with a string, or the string if none does."""
    short = text.upper()
    if _SHORT_ID.fullmatch(short) is None:
        return text
    found = sorted({str(info.id) for info in repository.snapshots()})
    found = [known for known in found if known.startswith(short)]
    if len(found) > 1:
        raise InvalidInputError(
            f"{len(found)} snapshots of {repository.location} begin with {text!r}, such as"
            f" {found[0]} and {found[1]}; give more characters",
            found=text,
        )
    return found[0] if found else text


def resolve_name(repository: RepositoryReader, name: str) -> SnapshotId:
    """Return the snapshot of a branch, of a tag, or of the beginning of an id."""
    from icechunk_format.dataset.metadata_tables.read import resolve_change

    if name not in repository.branches() and name not in repository.tags():
        name = whole_id(repository, name)
    # Equal ends of a change need no parent.
    return resolve_change(repository, older=name, newer=name)[1]


def secrets_in(arguments: Sequence[str]) -> list[str]:
    """Return the values in arguments that may be credentials, to keep them out of messages."""
    found = set()
    for argument in arguments:
        # An option may be one argument or two, so any "=" may separate name and value.
        for match in re.finditer("=", argument):
            value = argument[match.end() :]
            if len(value) >= _SHORTEST_SECRET and _SECRET.search(argument[: match.start()]):
                found.add(value)
    return sorted(found, key=len, reverse=True)
