"""Runs of ``reduce`` without Spark: in one process, and with pieces that are shuffled here."""

from __future__ import annotations

import pickle
import random
from typing import Any

from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.storage.location import Location
from icechunk_format.workflows.reducing import (
    ReduceRequest,
    dataset_of,
    one_process,
    reduce_arrays,
)
from icechunk_format.workflows.reducing.run import combine_pieces, cut_strand, reduce_tile


def shuffling(work: Any) -> list[Any]:
    """Run tasks as Spark does: pickled, with pieces in any order."""
    work = pickle.loads(pickle.dumps(work))
    receipts = []
    for name, array in work.arrays.items():
        reads = [(name, *read) for read in array.plan.reads]
        if array.plan.kind == "direct":
            receipts += [reduce_tile(work, task) for task in reads]
            continue
        pieces = [piece for task in reads for piece in cut_strand(work, task)]
        random.Random(0).shuffle(pieces)
        pieces.sort(key=lambda piece: piece.group)
        half = pieces[len(pieces) // 2].group if pieces else 0
        for is_first in (True, False):
            some = [piece for piece in pieces if (piece.group < half) == is_first]
            receipts.append(combine_pieces(work, name, some))
    return receipts


def request_of(path: Any, statistics: Any, over: Any, **given: Any) -> ReduceRequest:
    """Return a request with the defaults of ``reduce``."""
    to = given.pop("to", None)
    read = {key: given.pop(key) for key in ("variables", "sel", "isel", "group") if key in given}
    options = {key: given.pop(key) for key in ("mode", "branch") if key in given}
    return ReduceRequest(
        read=ReadRequest(path=str(path), **read),
        statistics=statistics,
        over=(over,) if isinstance(over, str) else tuple(over),
        target=None if to is None else Location.of(str(to)),
        options=WriteOptions(group=given.pop("to_group", None), **options),
        memory=given.pop("memory", 512 * 2**20),
        **given,
    )


def reduced(
    path: Any, statistics: Any, over: Any, *, cores: int | None = None, dry_run: bool = False,
    **given: Any,
) -> Any:  # fmt: skip
    """Reduce; return a dataset without a target, else the result."""
    request = request_of(path, statistics, over, **given)
    run = one_process if cores is None else shuffling
    done = reduce_arrays(request, run, cores=cores, dry_run=dry_run)
    return done if dry_run or request.target is not None else dataset_of(done)
