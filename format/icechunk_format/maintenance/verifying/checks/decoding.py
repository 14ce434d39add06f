"""Decodes every chunk, to check codecs, sizes, shard indexes and checksums.

Rules of this file
------------------
1. Chunks of one manifest are fetched in batches of about 64 MB and decoded one by one.
2. Arrays with an invalid ``zarr.json`` are skipped: ``snapshots`` reports them.
3. Missing and short chunk objects are skipped: the comparison with the listing reports them.

Specification: Zarr v3 core, "Codecs"; the codec ``sharding_indexed``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import encode_many
from icechunk_format.encoding.manifest.chunk_refs import KIND_NATIVE, KIND_VIRTUAL
from icechunk_format.encoding.object_keys import CHUNKS
from icechunk_format.errors import (
    ChunkModifiedError,
    FormatError,
    IcechunkError,
    NotFoundError,
    StorageError,
    UnauthorizedVirtualChunkError,
    UnsupportedError,
)
from icechunk_format.maintenance.verifying.checks.manifests import UsedRefs
from icechunk_format.maintenance.verifying.findings import Report
from icechunk_format.repository.chunks import ChunkSource
from icechunk_format.storage.batches import sized_batches
from icechunk_format.zarr.chunk_grid import ChunkGrid
from icechunk_format.zarr.codecs.chain import ChunkCodecs
from icechunk_format.zarr.zarr_json import parse_array_metadata

_BYTES_AT_ONCE: Final = 64 * 2**20
_CHUNKS_AT_ONCE: Final = 512
# Members that affect decoding; arrays that differ only in other members are decoded once.
_DECODING_MEMBERS: Final = ("data_type", "chunk_grid", "codecs", "fill_value")


def decode_chunks(used: UsedRefs, source: ChunkSource, report: Report) -> None:
    """Decode every chunk that one manifest references for an array.

    Virtual chunks are decoded if the source is authorized to fetch them.
    """
    for codecs, grid in _decoders(used):
        if used.refs.ndim != grid.ndim:
            continue
        inside = (used.refs.coords < np.array(grid.num_chunks, dtype=np.int64)).all(axis=1)
        rows = np.flatnonzero(inside & (used.refs.length > 0))
        sized = zip(rows, used.refs.length[rows].tolist(), strict=True)
        for batch in sized_batches(sized, _CHUNKS_AT_ONCE, _BYTES_AT_ONCE):
            _decode_batch(used, np.array(batch), codecs, grid, source, report)


def _decoders(used: UsedRefs) -> Iterator[tuple[ChunkCodecs, ChunkGrid]]:
    """Yield the distinct codecs and grids with which snapshots decode these chunks."""
    seen: set[str] = set()
    for use in used.uses:
        if use.document is None or len(use.extents) != used.refs.ndim:
            continue
        try:
            document = parse_array_metadata(use.document, node_path=use.node_path)
            way = json.dumps([document.raw.get(member) for member in _DECODING_MEMBERS])
            if way in seen:
                continue
            seen.add(way)
            yield document.chunk_codecs(), document.grid
        except (FormatError, UnsupportedError):
            continue


def _decode_batch(
    used: UsedRefs,
    rows: NDArray[np.int64],
    codecs: ChunkCodecs,
    grid: ChunkGrid,
    source: ChunkSource,
    report: Report,
) -> None:
    try:
        payloads: list[bytes | None] = [*source.fetch(used.refs, rows)]
    except IcechunkError:
        payloads = [_fetch_one(used, rows[at : at + 1], source, report) for at in range(len(rows))]
    for row, payload in zip(rows.tolist(), payloads, strict=True):
        if payload is None:
            continue
        chunk = used.chunk(row)
        report.count("decoded chunks", 1, len(payload))
        try:
            codecs.decode(payload, grid.full_chunk_shape(chunk), what=_name_of(used, row))
        except UnsupportedError:
            continue
        except FormatError as error:
            name, problem = _name_of(used, row), error.facts["problem"]
            used.at(report).add("chunk-undecodable", problem, chunk=chunk, object_key=name)


def _fetch_one(
    used: UsedRefs, row: NDArray[np.int64], source: ChunkSource, report: Report
) -> bytes | None:
    kind = int(used.refs.kind[row[0]])
    try:
        return source.fetch(used.refs, row)[0]
    except UnauthorizedVirtualChunkError:
        return None
    except (NotFoundError, FormatError, ChunkModifiedError) as error:
        # Missing native chunks are found by the listing, most virtual ones by requests for the
        # files.
        if kind == KIND_VIRTUAL and isinstance(error, FormatError):
            problem, chunk = error.message.splitlines()[0], used.chunk(int(row[0]))
            used.at(report).add("chunk-undecodable", problem, chunk=chunk)
        return None
    except StorageError:
        if kind == KIND_NATIVE:
            raise
        return None


def _name_of(used: UsedRefs, row: int) -> str:
    if int(used.refs.kind[row]) == KIND_NATIVE:
        return CHUNKS + encode_many(used.refs.chunk_id[row : row + 1])[0]
    return used.object_key
