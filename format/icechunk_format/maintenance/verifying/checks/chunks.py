"""Says which chunk objects references need, how long these must be, and reports missing ones.

One listing of ``chunks/`` answers for all of them, without a request for each chunk.

Specification: "Chunk Files"; several chunks may lie in one object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icechunk_format.maintenance.verifying.findings import Finding
from icechunk_format.spec.manifest.chunk_refs import KIND_NATIVE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from icechunk_format.maintenance.verifying.checks.manifests import UsedRefs

MARK_ONLY = -1
"""The end of a reference that nobody looks for; its object counts as referred to, no more."""

_MISSING = "the chunk object is not there"


class NativeRefs(NamedTuple):
    """References to chunk objects.

    Parameters
    ----------
    ids
        uint8, shape (n, 12): the objects.
    ends
        int64, shape (n,): bytes that each object must have at least; or ``MARK_ONLY``.
    rows
        int64, shape (n,): which references these are.
    """

    ids: NDArray[np.uint8]
    ends: NDArray[np.int64]
    rows: NDArray[np.int64]


def native_refs_of(used: UsedRefs) -> NativeRefs:
    """Return the references to chunk objects among those of an array."""
    refs = used.refs
    rows = np.flatnonzero(refs.kind == KIND_NATIVE)
    offset, length = refs.offset[rows], refs.length[rows]
    # What wraps around or exceeds 63 bits is reported elsewhere; here it is too long for anything.
    ends = np.minimum(offset, 2**62) + np.minimum(length, 2**62)
    ends = np.minimum(ends, 2**63 - 1).astype(np.int64)
    if not used.uses:
        ends = np.full(len(rows), MARK_ONLY, dtype=np.int64)
    return NativeRefs(ids=refs.chunk_id[rows], ends=ends, rows=rows)


def chunk_finding(
    *,
    chunk_key: str,
    size: int | None,
    end: int,
    chunk: tuple[int, ...],
    node_path: str | None,
    snapshot_id: str,
    rank: int,
) -> Finding:
    """Return the finding about one chunk object that is missing (``size`` None) or too short."""
    kind, problem = "chunk-missing", _MISSING
    if size is not None:
        kind = "chunk-too-short"
        problem = f"the chunk object has {size} bytes, and its reference needs {end}"
    return Finding(
        kind=kind,
        problem=problem,
        object_key=chunk_key,
        snapshot_id=snapshot_id,
        node_path=node_path,
        chunk=chunk,
        rank=rank,
    )
