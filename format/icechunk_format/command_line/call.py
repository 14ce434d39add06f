"""Runs a command on a repository, with the shared arguments and output.

``on_repository`` adds the shared arguments to a command. Modules that read repositories are
imported when a command runs.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import asdict, fields, is_dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from icechunk_format.command_line.arguments import (
    JsonOption,
    OptionOption,
    RepositoryArgument,
    declared_parameters,
    given_strings,
)
from icechunk_format.options.keywords import given_options, option_strings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from icechunk_format import Repository
    from icechunk_format.options.declare import Call as OptionCall
    from icechunk_format.options.read import ReadRequest
    from icechunk_format.storage.location import Location

_R = TypeVar("_R")


class Call:
    """A run of a command: repository, options and screen."""

    def __init__(
        self, repository: str, strings: Mapping[str, Any], *, as_json: bool, takes: OptionCall
    ) -> None:
        from icechunk_format.command_line.views.screen import Screen

        self.screen = Screen(as_json=as_json)
        self.strings = strings
        """The options of ``--option`` and of the parameters that are declared for the call."""
        self._repository, self._takes = repository, takes

    def given(self, **others: str | None) -> dict[str, Any]:
        """Return the path and the options as strings, with those that the command adds."""
        return given_options(self._repository, {**self.strings, **others})

    @functools.cached_property
    def options(self) -> ReadRequest:
        """The options of reading, and of the location of the repository."""
        from icechunk_format.options.parse import parse_read_options

        return parse_read_options(self.given(), self._takes)

    @functools.cached_property
    def location(self) -> Location:
        """The location of the repository."""
        from icechunk_format.options.location import location_of

        return location_of(self.options)

    @functools.cached_property
    def repository(self) -> Repository:
        """The repository, opened on first use."""
        from icechunk_format import Repository

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
        needs_terminal: bool = True,
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
        needs_terminal
            False if no terminal is required, since the plan may not need a confirmation.
        is_needed
            Returns True if a planned result changes anything.
        """
        self.screen.require_confirmation(yes or dry_run or not needs_terminal)
        result = run(dry_run or not yes)
        if not (dry_run or yes) and is_needed(result):
            show(self.screen.aside, result)
            self.screen.confirm(question, yes)
            result = run(False)
        self.document(**document(result))
        show(self.screen.line, result)
        return result


def on_repository(
    command: Callable[..., None],
    argument: Any = RepositoryArgument,
    takes: OptionCall = "maintenance",
    names: Sequence[str] | None = None,
) -> Callable[..., None]:
    """Add a repository, ``--option`` and ``--json`` to the arguments of a command.

    A parameter whose type is a dataclass becomes an option for each of its fields. ``takes`` is the
    call whose options the command takes, as parameters (all or those of `names`) and in
    ``--option``.
    """
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    choices: dict[str, Any] = {
        one.name: one.annotation for one in own if is_dataclass(one.annotation)
    }
    fixed = list(chain.from_iterable(map(_options_of, own)))
    declared = declared_parameters(takes, [one.name for one in fixed], names)

    @functools.wraps(command)
    def run(repository: str, option: list[str] | None, as_json: bool, **given: Any) -> None:
        for name, choice in choices.items():
            given[name] = choice(**{one.name: given.pop(one.name) for one in fields(choice)})
        strings = given_strings(option, takes, command.__name__.replace("_", "-"))
        strings |= option_strings({one.name: given.pop(one.name) for one in declared})
        command(Call(repository, strings, as_json=as_json, takes=takes), **given)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter("repository", kind, annotation=argument),
        *fixed,
        *declared,
        inspect.Parameter("option", kind, annotation=OptionOption, default=None),
        inspect.Parameter("as_json", kind, annotation=JsonOption, default=False),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _options_of(parameter: inspect.Parameter) -> Iterable[inspect.Parameter]:
    if not is_dataclass(parameter.annotation):
        return (parameter,)
    choice: Any = parameter.annotation
    return inspect.signature(choice, eval_str=True).parameters.values()
