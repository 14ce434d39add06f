"""Commands that edit nodes in one commit: ``attrs``, ``rename``, ``drop``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from icechunk_format.command_line.arguments import (
    BranchOption,
    MessageOption,
    json_or_word,
    node_path,
)
from icechunk_format.command_line.call import Call
from icechunk_format.display.plain_text import safe
from icechunk_format.errors import InvalidInputError

if TYPE_CHECKING:
    from icechunk_format.repository.commit import CommitResult

_PathArgument = Annotated[
    str,
    typer.Argument(metavar="PATH", help="Path of the group or array: /t2m, or t2m below the root."),
]


def set_attributes(
    call: Call,
    path: _PathArgument,
    values: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE...", help="A JSON value or a word: units=K.")
    ],
    branch: BranchOption = None,
    message: MessageOption = None,
) -> None:
    """Set attributes of a group or array."""
    given: dict[str, Any] = {}
    for item in values:
        name, equals, string = item.partition("=")
        given[name] = value = json_or_word(string)
        is_cut = value == string and string.startswith(("[", "{", '"'))
        if not (name and equals) or is_cut:
            raise InvalidInputError(
                f"{item!r} is not NAME=VALUE with a word or a JSON value, such as units=K or"
                " valid_range='[180, 340]'",
                found=item,
            )
    done = call.repository.set_attributes(
        node_path(path), given, branch=branch or "main", message=message
    )
    _report(call, branch, done)


def unset_attributes(
    call: Call,
    path: _PathArgument,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of attributes.")],
    branch: BranchOption = None,
    message: MessageOption = None,
) -> None:
    """Remove attributes of a group or array."""
    repository, chosen = call.repository, branch or "main"
    done = repository.set_attributes(
        node_path(path), {}, remove=names, branch=chosen, message=message
    )
    _report(call, branch, done)


def rename(
    call: Call,
    path: _PathArgument,
    new_path: Annotated[str, typer.Argument(metavar="NEW_PATH", help="New path.")],
    branch: BranchOption = None,
    message: MessageOption = None,
) -> None:
    """Move a group or array to another path, without copying."""
    done = call.repository.rename(
        node_path(path), node_path(new_path), branch=branch or "main", message=message
    )
    _report(call, branch, done)


def drop(
    call: Call, path: _PathArgument, branch: BranchOption = None, message: MessageOption = None
) -> None:
    """Delete a group or array in a new snapshot."""
    done = call.repository.drop(node_path(path), branch=branch or "main", message=message)
    _report(call, branch, done)


def _report(call: Call, branch: str | None, done: CommitResult | None) -> None:
    snapshot_id = None if done is None else str(done.snapshot_id)
    call.document(branch=branch or "main", snapshot_id=snapshot_id)
    if snapshot_id is None:
        call.screen.line("nothing to change")
    else:
        call.screen.line(f"branch {safe(branch or 'main')} is now at {snapshot_id}")
