"""References of manifests as rows that tests compare, and manifests of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from icechunk_format.encoding.ids import ManifestId, NodeId
from icechunk_format.encoding.manifest import decode as manifest
from icechunk_format.encoding.manifest.chunk_refs import (
    KIND_INLINE,
    KIND_NATIVE,
    KIND_VIRTUAL,
    ChunkRefs,
    inline_refs,
    native_refs,
    virtual_refs,
)
from icechunk_format.encoding.manifest.decode import ArrayManifest, Manifest
from icechunk_format.encoding.manifest.encode import encode
from icechunk_format.encoding.manifest.location_dictionary import LocationCompression

NODE = NodeId(b"node-id-")
ALWAYS = LocationCompression(min_num_chunks=1)

# A reference as a test sees it: coordinates and everything that a reader would use.
Seen = dict[tuple[int, ...], tuple[Any, ...]]

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
locations = st.sampled_from(["s3://b/one.nc", "s3://b/two.nc"]) | texts
u64 = st.integers(0, 2**64 - 1)
native = st.tuples(
    st.just(KIND_NATIVE),
    st.binary(min_size=12, max_size=12),
    st.sampled_from([0, 0, 7, 2**40]),
    st.integers(1, 2**63),
)
inline = st.tuples(st.just(KIND_INLINE), st.binary(min_size=1, max_size=40))
virtual = st.tuples(
    st.just(KIND_VIRTUAL),
    locations,
    u64,
    u64,
    st.none() | texts,
    st.sampled_from([0, 1_700_000_000]),
)


@st.composite
def references(draw: st.DrawFn) -> tuple[int, Seen]:
    """Draw rows of an array, of one kind of reference or of several."""
    ndim = draw(st.integers(0, 3))
    kinds = draw(
        st.sampled_from([native, inline, virtual, native | inline, native | inline | virtual])
    )
    coordinate = st.tuples(*[st.integers(0, 3) | st.just(2**32 - 1)] * ndim)
    return ndim, draw(st.dictionaries(coordinate, kinds, max_size=12))


def build(ndim: int, rows: Seen) -> ChunkRefs:
    """Make columns from rows with the three constructors, one per kind."""
    parts = [ChunkRefs.empty(ndim)]
    for kind in (KIND_NATIVE, KIND_INLINE, KIND_VIRTUAL):
        chosen = {at: row for at, row in rows.items() if row[0] == kind}
        if not chosen:
            continue
        coords = np.array(list(chosen), dtype=np.int64).reshape(len(chosen), ndim)
        columns = [list(column) for column in zip(*chosen.values(), strict=True)]
        numbers = [np.array(c, dtype=np.uint64) if c[0].__class__ is int else c for c in columns]
        if kind == KIND_NATIVE:
            ids = np.frombuffer(b"".join(columns[1]), dtype=np.uint8).reshape(-1, 12)
            parts.append(native_refs(coords, ids, numbers[3], numbers[2]))
        elif kind == KIND_INLINE:
            parts.append(inline_refs(coords, columns[1]))
        else:
            parts.append(
                virtual_refs(
                    coords,
                    columns[1],
                    numbers[2],
                    numbers[3],
                    etags=columns[4],
                    last_modified=numbers[5],
                )
            )
    return ChunkRefs.concat(parts)


def see(refs: ChunkRefs) -> Seen:
    """Turn columns back into rows, checking the columns that a kind does not use."""
    seen: Seen = {}
    for row, coords in enumerate(refs.coords.tolist()):
        kind = int(refs.kind[row])
        offset, length = int(refs.offset[row]), int(refs.length[row])
        if kind == KIND_NATIVE:
            found: tuple[Any, ...] = (kind, refs.chunk_id[row].tobytes(), offset, length)
        elif kind == KIND_INLINE:
            found = (kind, refs.inline(row))
            assert (offset, length) == (0, len(found[1]))
        else:
            modified = int(refs.last_modified[row])
            found = (kind, refs.location(row), offset, length, refs.etag(row), modified)
        seen[tuple(coords)] = found
    assert list(seen) == sorted(seen)
    return seen


def manifest_of(*arrays: ChunkRefs) -> Manifest:
    """Make a manifest of one entry per array, with node ids counted from 0."""
    return Manifest(
        id=ManifestId(b"manifest-id!"),
        arrays=tuple(
            ArrayManifest(node_id=NodeId(bytes([i]) * 8), refs=refs)
            for i, refs in enumerate(arrays)
        ),
    )


def round_trip(refs: ChunkRefs, **options: Any) -> ChunkRefs:
    """Write references as the only array of a manifest, and read them back."""
    found = manifest.decode(encode(manifest_of(refs), **options))
    return found.arrays[0].refs


def far_away(count: int, *, extra: str = "") -> ChunkRefs:
    """Refer to ``count`` different files with long names."""
    names = [f"s3://bucket/archive/year={i % 30}/GOES16_{i:07}{extra}.nc" for i in range(count)]
    rows = np.arange(count)
    return virtual_refs(rows[:, None], names, rows * 10, np.full(count, 5))
