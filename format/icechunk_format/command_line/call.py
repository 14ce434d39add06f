"""Runs a command on a repository, with the shared arguments and output.

``on_repository`` adds the shared arguments to a command. Modules that read repositories are
imported when a command runs.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from icechunk_format.command_line.arguments import (
    JsonOption,
    OptionOption,
    RepositoryArgument,
    parse_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from icechunk_format.options.declare import Call as OptionCall
    from icechunk_format.options.read import ReadRequest
    from icechunk_format.repository import Repository

_R = TypeVar("_R")


class Call:
    """A run of a command: repository, options and screen."""

    def __init__(
        self,
        repository: str,
        option: list[str] | None,
        *,
        as_json: bool,
        takes: OptionCall = "verify",
    ) -> None:
        from icechunk_format.command_line.views.screen import Screen
        from icechunk_format.options.location import location_of

        self.screen = Screen(as_json=as_json)
        self._given = repository, option
        self.options = parse_options(repository, option, takes=takes)
        self.location = location_of(self.options)

    def reading(self, options: Mapping[str, str]) -> ReadRequest:
        """Return the options of a read: those of ``--option``, overridden by others."""
        return parse_options(*self._given, options, takes="read")

    @functools.cached_property
    def repository(self) -> Repository:
        """The repository, opened on first use."""
        from icechunk_format.repository import Repository

        return Repository.open(self.location)

    def document(self, **keys: Any) -> None:
        """Print the JSON document if ``--json`` was given."""
        if keys.get("totals", ...) is None:  # set by Spark only
            del keys["totals"]
        self.screen.document({"repository": str(self.location), **keys})

    def carry_out(
        self,
        run: Callable[[bool], _R],
        show: Callable[[Callable[[Any], None], _R], None],
        question: str,
        *,
        yes: bool,
        dry_run: bool,
        asks: bool = True,
        is_needed: Callable[[_R], bool] = lambda planned: True,
        document: Callable[[Any], dict[str, Any]] = asdict,
    ) -> _R:
        """Show the plan of a command, ask for a confirmation, run it, and report the result.

        Parameters
        ----------
        run
            Runs the command; only plans it if the argument is True.
        show
            Prints a result, with the given function for a line.
        yes
            Run without showing a plan or asking for confirmation.
        asks
            False if no terminal is required, since the plan may not need a confirmation.
        is_needed
            Returns True if a planned result changes anything.
        """
        self.screen.require_confirmation(yes or dry_run or not asks)
        result = run(dry_run or not yes)
        if not (dry_run or yes) and is_needed(result):
            show(self.screen.aside, result)
            self.screen.confirm(question, yes)
            result = run(False)
        self.document(**document(result))
        show(self.screen.line, result)
        return result


def on_repository(
    command: Callable[..., None], argument: Any = RepositoryArgument, takes: OptionCall = "verify"
) -> Callable[..., None]:
    """Add a repository, ``--option`` and ``--json`` to the arguments of a command.

    ``takes`` is the call whose options ``--option`` may name.
    """

    @functools.wraps(command)
    def run(repository: str, option: list[str] | None, as_json: bool, **own: Any) -> None:
        command(Call(repository, option, as_json=as_json, takes=takes), **own)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [
        inspect.Parameter("repository", kind, annotation=argument),
        *own,
        inspect.Parameter("option", kind, annotation=OptionOption, default=None),
        inspect.Parameter("as_json", kind, annotation=JsonOption, default=False),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
