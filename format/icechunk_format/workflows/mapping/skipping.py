"""Fills the elements of failed blocks, with ``on_error="skip"``.

==============================================  ===================================================
elements of a failed block                      are
==============================================  ===================================================
of labels, and of arrays without missing value  those of the source; refused if the function changes
                                                them
of other coordinates                            those of the source, unless the function changes
                                                them
that other blocks return as well                those of the other blocks
of other arrays                                 missing
==============================================  ===================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.mapping.agreement import SharedBox
from icechunk_format.workflows.mapping.outputs import OutputArray
from icechunk_format.workflows.mapping.tasks import BlockTask, Mapped


def check_skips(arrays: Mapping[str, OutputArray]) -> None:
    """Raise InvalidInputError if elements of failed blocks would read as values."""
    for name, output in arrays.items():
        if output.needs_source and not output.passed:
            dims = ", ".join(f"{dim!r}: -1" for dim in output.factors)
            raise InvalidInputError(
                f"variable {name!r} has no missing value, and its values are not those of the"
                " source, so that elements of failed blocks would read as values: use"
                f" on_error='fail', read the whole dimension in one block (blocks={{{dims}}}), or"
                " for a variable that is no label, return floats or set"
                f" encoding={{{name!r}: {{'_FillValue': ...}}}}",
                option="on_error",
                variable=name,
            )


def once_more(
    arrays: Mapping[str, OutputArray], done: Sequence[Mapped], agreed: Mapping[SharedBox, int]
) -> list[list[BlockTask]]:
    """Return the blocks that write boxes shared between blocks in place of failed blocks.

    If all blocks of a box failed, it has the values of the source.
    """
    again: dict[tuple[int, bool], list[str]] = {}
    for one in done:
        for box in one.missing:
            if box in agreed:
                again.setdefault((agreed[box], False), []).append(box.name)
            elif arrays[box.name].passed:
                again.setdefault((one.number, True), []).append(box.name)
    return [[BlockTask(number, tuple(own), failed)] for (number, failed), own in again.items()]
