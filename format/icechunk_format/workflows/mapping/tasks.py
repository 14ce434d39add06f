"""Computes and writes blocks of a mapping, on executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import InvalidInputError
from icechunk_format.groups.changing import (
    Destination,
    TaskFiles,
    TaskReceipt,
    chunks_before,
)
from icechunk_format.workflows.mapping.agreement import (
    Digest,
    Disagreement,
    FirstValues,
    SharedBox,
    differing,
    digest_of,
    unequal,
)
from icechunk_format.workflows.mapping.blocks import (
    Block,
    BlockGrid,
    BlockReader,
)
from icechunk_format.workflows.mapping.first_block import BlockFunction, is_same
from icechunk_format.workflows.mapping.others import StoredArray
from icechunk_format.workflows.mapping.outputs import Layout, OutputArray, Result, check_like_first


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockMapping:
    """The context of all tasks; picklable.

    Parameters
    ----------
    first
        Values of the first block, for comparison; None if they are unknown.
    """

    grid: BlockGrid
    function: BlockFunction
    destination: Destination
    arrays: Mapping[str, OutputArray]
    skips_errors: bool
    first: FirstValues | None = None

    def read_passed(self, arrays: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
        """Return copies of the arrays of a block whose values the result takes from the source."""
        return {
            name: arrays[name]._replace(values=arrays[name].values.copy())
            for name, output in self.arrays.items()
            if output.passed and name in arrays
        }


class BlockTask(NamedTuple):
    """A block to compute; `names` limits the arrays to write.

    If `is_failed`, the function failed for the block, and the arrays are those of the source.
    """

    number: int
    names: tuple[str, ...] | None = None
    is_failed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Mapped:
    """The outcome of a block.

    Parameters
    ----------
    failed
        Labels and error of a skipped block.
    shared
        Digests of the boxes that other blocks return as well; None for a skipped block.
    missing
        Boxes among them that a skipped block would have written.
    """

    number: int
    failed: str | None = None
    shared: Mapping[SharedBox, Digest | None] = field(default_factory=dict)
    missing: tuple[SharedBox, ...] = ()


def map_blocks(work: BlockMapping, task: Sequence[BlockTask]) -> tuple[TaskReceipt, list[Mapped]]:
    """Compute and write blocks, one by one."""
    running = _RunningTask(work)
    done = [running.map(one) for one in task]
    return running.files.receipt(), done


class _RunningTask:
    """Computes the blocks of one task."""

    def __init__(self, work: BlockMapping) -> None:
        self._work = work
        self._reader = work.grid.reader()
        self.files = TaskFiles(work.destination)
        # Digests of stored values, by box: the blocks of a task share most of them.
        self._stored: dict[SharedBox, bytes] = {}

    def map(self, task: BlockTask) -> Mapped:
        work, block = self._work, self._work.grid.block(task.number)
        arrays = self._reader.read(block)
        if task.is_failed:
            self._write_source(block, arrays, task.names or ())
            return Mapped(task.number)
        source = work.read_passed(arrays) if work.skips_errors else {}
        label = work.function.label(block, arrays)
        try:
            found = _checked_results(work, self._reader, block, arrays, label)
        except InvalidInputError as error:
            if not work.skips_errors:
                raise
            return self._skipped(block, source, error.message)
        _check_first(work, found, label)
        _check_passed(work, block, source, found, label)
        output = {
            name: one
            for name, one in work.arrays.items()
            if (one.is_written_by(block) if task.names is None else name in task.names)
        }
        for name, one in output.items():
            self._write(block, one, found[name].values)
        shared = {
            box: self._digest(box, work.arrays[box.name], block, found[box.name].values)
            for box in _shared(work, block)
        }
        return Mapped(task.number, None, shared)

    def _skipped(self, block: Block, source: Mapping[str, StoredArray], message: str) -> Mapped:
        """Leave the block missing, with the labels of the source."""
        own = {name: one for name, one in self._work.arrays.items() if not one.once}
        passed = [name for name in own if name in source]
        self._write_source(block, source, passed)
        for name, one in own.items():
            if name not in passed:
                box, target = one.box(block), one.target
                before = chunks_before(target.metadata.grid, *box, target.old_shape)
                self.files.clear(target, before)
        boxes = _shared(self._work, block)
        arrays = self._work.arrays
        missing = tuple(box for box in boxes if arrays[box.name].is_written_by(block))
        return Mapped(block.number, message, dict.fromkeys(boxes), missing)

    def _write_source(
        self, block: Block, arrays: Mapping[str, StoredArray], names: Sequence[str]
    ) -> None:
        """Write arrays of the source."""
        results = self._work.function.source(block, {name: arrays[name] for name in names})
        for layout, values in results:
            self._write(block, self._work.arrays[layout.name], values)

    def _write(self, block: Block, output: OutputArray, values: NDArray[Any]) -> None:
        self.files.write(output.target, output.box(block)[0], values)

    def _digest(
        self, box: SharedBox, output: OutputArray, block: Block, values: NDArray[Any]
    ) -> Digest:
        digest = digest_of(values)
        if output.target.old_shape is None:
            return Digest(digest)
        if box not in self._stored:
            before = _stored_values(self._work, output, block)
            self._stored[box] = b"" if before is None else digest_of(before)
        return Digest(digest, self._stored[box] == digest)


def explain(work: BlockMapping, found: Disagreement) -> InvalidInputError:
    """Compute two blocks that differ; return the error that names the first difference."""
    name, layout, reader = found.box.name, None, work.grid.reader()
    labels: list[str] = []
    values: list[NDArray[Any]] = []
    for number in (found.block, found.other):
        if number is None:
            block = work.grid.block(found.block)
            labels.append("the last run (if the function changed, set another function_version)")
            stored = _stored_values(work, work.arrays[name], block)
            values.append(values[0][:0] if stored is None else stored)
            continue
        block = work.grid.block(number)
        arrays = reader.read(block)
        labels.append(work.function.label(block, arrays))
        result = _checked_results(work, reader, block, arrays, labels[-1])[name]
        layout = layout or result.layout
        values.append(result.values)
    assert layout is not None
    labels = [labels[0], labels[1] if found.other is None else f"block {labels[1]}"]
    return _difference(work, layout, values, labels)


def _checked_results(
    work: BlockMapping,
    reader: BlockReader,
    block: Block,
    arrays: Mapping[str, StoredArray],
    label: str,
) -> dict[str, Result]:
    """Call the function with a block; return its results by name."""
    others = reader.read_others(block)
    results, _ = work.function(block, arrays, work.grid.attributes, others)
    found = {result.layout.name: result for result in results}
    if found.keys() != work.arrays.keys():
        raise InvalidInputError(
            f"block {label} has the variables {', '.join(found)}, and others"
            f" {', '.join(work.arrays)}; return the same for each block",
            block=label,
        )
    for name, result in found.items():
        check_like_first(work.arrays[name], block, result.layout, label)
    return found


def _check_first(work: BlockMapping, found: Mapping[str, Result], label: str) -> None:
    """Raise InvalidInputError if values are not those that the first block returned."""
    if work.first is None:
        return
    for name, values in work.first.values.items():
        pair = [found[name].values, values]
        if work.arrays[name].once and unequal(*pair).any():
            raise _difference(work, found[name].layout, pair, [label, work.first.label])


def _check_passed(
    work: BlockMapping,
    block: Block,
    source: Mapping[str, StoredArray],
    found: Mapping[str, Result],
    label: str,
) -> None:
    """Raise InvalidInputError if a result differs from the source that failed blocks take."""
    for before in work.function.source(block, source):
        name = before.layout.name
        if not is_same(before, *found[name]):
            raise InvalidInputError(
                f"variable {name!r} of block {label} is not that of the source, as in other blocks;"
                " with on_error='skip', failed blocks have the values of the source: drop it, or"
                " use on_error='fail'",
                variable=name,
                block=label,
            )


def _difference(
    work: BlockMapping, layout: Layout, values: Sequence[NDArray[Any]], labels: Sequence[str]
) -> InvalidInputError:
    one, other = values
    mask = np.ones(one.shape, np.bool_) if one.shape != other.shape else unequal(one, other)
    shown: list[str] = []
    if mask.any() and one.shape == other.shape:
        at = np.unravel_index(int(np.argmax(mask)), mask.shape)
        shown = [work.function.shown(layout, value[at]) for value in values]
    output = work.arrays[layout.name]
    return differing(output, layout, (labels[0], labels[1]), mask, shown)


def _shared(work: BlockMapping, block: Block) -> list[SharedBox]:
    """Return the boxes that other blocks return as well."""
    return [
        SharedBox(name, tuple(output.box(block)[0]))
        for name, output in work.arrays.items()
        if output.once
    ]


def _stored_values(work: BlockMapping, output: OutputArray, block: Block) -> NDArray[Any] | None:
    """Return the values that the last run stored for a block; None if they are new."""
    lower, upper = output.box(block)
    old = output.target.old_shape
    if old is None or any(high > size for high, size in zip(upper, old, strict=True)):
        return None
    return work.destination.open_base().reader(output.target.path).read_box(lower, upper)
