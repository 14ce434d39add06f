"""The command ``reduce``, which stores statistics of arrays along dimensions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer

from icechunk_format.command_line.arguments import DryRunOption, MemoryOption, location_at
from icechunk_format.command_line.call import Call
from icechunk_format.command_line.commands.transfer import TargetOption
from icechunk_format.command_line.views.documents import result_keys
from icechunk_format.display.plain_text import counted, safe, size
from icechunk_format.errors import InvalidInputError


def reduce(
    call: Call,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Repository to write to.")],
    statistic: Annotated[
        list[str],
        typer.Option(
            metavar="VARIABLE=NAMES",
            help="Statistics of a variable: t2m=mean,std; with one name, the result has the name of"
            " the variable. Or names for all variables: mean. Repeatable.",
        ),
    ],
    over: Annotated[
        str,
        typer.Option(metavar="DIMENSIONS", help="Reduced dimensions: latitude,longitude."),
    ],
    by: Annotated[
        str | None,
        typer.Option(
            metavar="GROUPS",
            help="Groups along one of them: time.month, 1D, a coordinate, time=3 (elements), or"
            " edges of bins: latitude=-90,-30,30,90.",
        ),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(metavar="NAME", help="area, or a variable that holds weights.")
    ] = None,
    to_group: Annotated[
        str | None, typer.Option(metavar="PATH", help="Group to write to; default: the root.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Compute only what changed since the last run.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace arrays with the same names.")
    ] = False,
    target_option: TargetOption = None,
    memory: MemoryOption = "512m",
    dry_run: DryRunOption = False,
) -> None:
    """Store statistics along dimensions, in one process."""
    from icechunk_format.options.values import parse_byte_size, parse_names
    from icechunk_format.options.write_request import parse_change
    from icechunk_format.workflows.reducing import (
        ReduceRequest,
        ReduceResult,
        one_process,
        reduce_arrays,
    )

    read, commit = parse_change(call.given(), "reduce")
    request = ReduceRequest(
        read=read,
        statistics=_statistics(statistic),
        over=tuple(parse_names("--over", over)),
        by=_groups(by),
        weights=weights,
        target=location_at(target, target_option),
        options=replace(
            commit,
            branch="main",
            group=to_group,
            mode="overwrite" if overwrite else "errorifexists",
        ),
        memory=parse_byte_size("--memory", memory),
        follow=follow,
    )
    with call.screen.working("Reducing") as progress:
        run = partial(one_process, progress=progress)
        result = reduce_arrays(request, run, cores=None, dry_run=dry_run)
    assert isinstance(result, ReduceResult)
    call.document(dry_run=dry_run, **result_keys(result))
    if dry_run:
        for line in result.layout.splitlines():
            call.screen.line(safe(line))
    for path in result.arrays:
        call.screen.line(safe(path))
    if result.full_run is not None:
        call.screen.line(f"everything was read: {safe(result.full_run)}")
    call.screen.line(
        f"{counted(len(result.arrays), 'array')} of {size(result.written_bytes)},"
        f" {size(result.decoded_bytes)} decoded, in {counted(result.tasks, 'step')},"
        f" {counted(result.requests, 'chunk')} to read and write at most"
    )
    if result.commit is not None:
        done = result.commit
        at = f"committed as {done.snapshot_id}" if done.reason is None else safe(done.reason)
        call.screen.line(at)


def _statistics(given: list[str]) -> Any:
    """Return the statistics by variable, or those of all variables."""
    named: dict[str, str | list[str]] = {}
    of_all: list[str] = []
    for string in given:
        name, separator, names = string.partition("=")
        # quantile(q=0.9) has a sign of equality, too.
        if not separator or "(" in name:
            of_all += [one.strip() for one in string.split(",")]
            continue
        chosen = [one.strip() for one in names.split(",")]
        named[name.strip()] = chosen if len(chosen) > 1 else chosen[0]
    if named and of_all:
        raise InvalidInputError(
            f"--statistic has {of_all[0]!r} without a variable and {next(iter(named))!r} with"
            " statistics: name the variable of each, or of none",
            argument="--statistic",
        )
    return named or (of_all if len(of_all) > 1 else of_all[0])


def _is_number(string: str) -> bool:
    """Return True if a text is a number of elements."""
    return string.isdecimal() and len(string) < 20


def _groups(string: str | None) -> Any:
    """Return the groups: a name, a number of elements, or edges of bins."""
    if string is None:
        return None
    name, separator, given = string.partition("=")
    if not separator:
        return int(string) if _is_number(string) else string
    if _is_number(given):
        return {name: int(given)}
    try:
        return {name: [float(edge) for edge in given.split(",")] if "," in given else given}
    except ValueError:
        raise InvalidInputError(
            f"--by is {string!r}; write time.month, 1D, time=3 or latitude=-90,-30,30,90",
            argument="--by",
        ) from None
