"""Writes chunk manifests from columns.

The references of an array are split into groups whose tables have the same fields. Each group is
one structured array (`tables.bulk_writer`), filled column by column. Coordinates follow their table
directly, so their offset is the same in all tables.

Rules of this file
------------------
1. Arrays are sorted by node id and references by coordinate, since readers use binary search.
2. A field is written if a row of a group needs it. ``offset`` is zero for nearly all native chunks,
   and then absent.
3. Locations of many virtual references share a dictionary. References with a dictionary keep
   it for new ones; different dictionaries are replaced by a new one.
4. Equal neighbouring locations are stored once.

Spec: "Chunk Manifest Files".
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.envelope import DEFAULT_LEVEL, SPEC_V1, SPEC_V2, FileType, wrap
from icechunk_format.encoding.manifest.chunk_refs import (
    KIND_INLINE,
    KIND_NATIVE,
    KIND_VIRTUAL,
    ChunkRefs,
)
from icechunk_format.encoding.manifest.decode import (
    ARRAY_MANIFEST,
    CHUNK_REF,
    MANIFEST,
    CompressionAlgorithm,
    Manifest,
)
from icechunk_format.encoding.manifest.location_dictionary import (
    MAX_LOCATION_SIZE,
    LocationCompression,
    train_dictionary,
)
from icechunk_format.encoding.tables.bulk_writer import Assembly, OffsetVector, TableLayout
from icechunk_format.errors import InvalidInputError

DEFAULT_LOCATION_COMPRESSION: Final = LocationCompression()

_COMPRESSED, _WITH_ETAG = 4, 8  # flags; added to the kind, they number the groups of tables

# An absent algorithm means compression with the dictionary, so it is always written.
_ROOT_FIELDS: Final = ("id", "arrays", "compression_algorithm")
_ROOT: Final = TableLayout(MANIFEST, _ROOT_FIELDS)
_ROOT_WITH_DICTIONARY: Final = TableLayout(MANIFEST, (*_ROOT_FIELDS, "location_dictionary"))
_ARRAY: Final = TableLayout(ARRAY_MANIFEST)


@lru_cache(maxsize=256)
def _ref_layout(group: int, ndim: int, *, has_offset: bool, has_last_modified: bool) -> TableLayout:
    """Return the layout of a group of references; cached, since small files need it often."""
    kind = group & ~(_COMPRESSED | _WITH_ETAG)
    fields = ["index"]
    if kind == KIND_INLINE:
        fields.append("inline")
    else:
        fields.append("length")
        if has_offset:
            fields.append("offset")
    if kind == KIND_NATIVE:
        fields.append("chunk_id")
    if kind == KIND_VIRTUAL:
        fields.append("compressed_location" if group & _COMPRESSED else "location")
        if group & _WITH_ETAG:
            fields.append("checksum_etag")
        if has_last_modified:
            fields.append("checksum_last_modified")
    return TableLayout(CHUNK_REF, fields, embedded=ndim)


def encode(
    manifest: Manifest,
    *,
    spec_version: int = SPEC_V2,
    location_compression: LocationCompression | None = DEFAULT_LOCATION_COMPRESSION,
    level: int = DEFAULT_LEVEL,
) -> bytes:
    """Return a manifest file; equal input gives equal bytes.

    ``location_compression=None`` keeps locations plain, as in spec version 1. Raises
    InvalidInputError if the manifest exceeds 2 GiB before compression and must be split.
    """
    payload = encode_payload(
        manifest, location_compression=None if spec_version == SPEC_V1 else location_compression
    )
    return wrap(payload, file_type=FileType.MANIFEST, spec_version=spec_version, level=level)


def encode_payload(
    manifest: Manifest,
    *,
    location_compression: LocationCompression | None = DEFAULT_LOCATION_COMPRESSION,
) -> bytes:
    """Write the flatbuffer of a manifest file; see ``encode``."""
    entries = sorted(manifest.arrays, key=lambda entry: entry.node_id)
    if len({entry.node_id for entry in entries}) != len(entries):
        raise InvalidInputError(
            f"manifest {manifest.id} has several entries of one array; join their references first"
        )
    dictionary, all_refs = _with_compression(
        [entry.refs for entry in entries], location_compression
    )
    made = Assembly(f"manifest {manifest.id}")
    root = made.root(_ROOT if dictionary is None else _ROOT_WITH_DICTIONARY)
    root.rows["id"] = np.frombuffer(manifest.id.raw, dtype=np.uint8)
    if dictionary is not None:
        root.rows["compression_algorithm"] = CompressionAlgorithm.ZSTD_DICTIONARY
        raw = np.frombuffer(dictionary, dtype=np.uint8)
        root.point("location_dictionary", made.struct_vector(raw.reshape(-1, 1)))
    arrays_at, tables = made.table_vector(_ARRAY, len(entries))
    root.point("arrays", arrays_at)
    refs_at = np.zeros(len(entries), dtype=np.int64)
    for row, (entry, refs) in enumerate(zip(entries, all_refs, strict=True)):
        tables.rows["node_id"][row] = np.frombuffer(entry.node_id.raw, dtype=np.uint8)
        refs_at[row], ref_cells = made.offset_vector(len(refs))
        _write_refs(made, refs, ref_cells)
    tables.point("refs", refs_at)
    return made.finish()


def _write_refs(made: Assembly, refs: ChunkRefs, cells: OffsetVector) -> None:
    """Write the tables of one array, group by group."""
    group_of_row = refs.kind.astype(np.uint8)
    strings = refs.strings
    if strings is not None:
        if strings.is_compressed is not None:
            group_of_row += np.where(strings.is_compressed, np.uint8(_COMPRESSED), np.uint8(0))
        if strings.etag_starts is not None:
            group_of_row += np.where(strings.etag_starts >= 0, np.uint8(_WITH_ETAG), np.uint8(0))
    groups = _distinct(group_of_row)
    for group in groups:
        rows = slice(None) if len(groups) == 1 else np.flatnonzero(group_of_row == group)
        _write_group(made, refs, rows, group, cells)


def _distinct(numbers: NDArray[np.uint8]) -> list[int]:
    """Return the distinct values in ascending order."""
    if not numbers.size:
        return []
    first = int(numbers[0])
    return [first] if (numbers == first).all() else np.unique(numbers).tolist()


def _write_group(
    made: Assembly, refs: ChunkRefs, rows: NDArray[np.intp] | slice, group: int, cells: OffsetVector
) -> None:
    layout = _ref_layout(
        group,
        refs.ndim,
        has_offset=bool(refs.offset[rows].any()),
        has_last_modified=bool(refs.last_modified[rows].any()),
    )
    fields = layout.offsets
    records = made.records(layout, len(refs.kind[rows]))
    cells.point(rows, records.positions)
    records.point("index", records.positions + records.layout.offsets["embedded_length"])
    records.rows["embedded_length"] = refs.ndim
    records.rows["embedded"] = refs.coords[rows]
    for name, column in (
        ("length", refs.length),
        ("offset", refs.offset),
        ("chunk_id", refs.chunk_id),
        ("checksum_last_modified", refs.last_modified),
    ):
        if name in fields:
            records.rows[name] = column[rows]
    strings = refs.strings
    for name in ("inline", "location", "compressed_location", "checksum_etag"):
        if strings is not None and name in fields:
            is_etag = name == "checksum_etag"
            plain = strings.starts, strings.lengths
            starts, lengths = strings.etag_ranges() if is_etag else plain
            at = made.byte_vectors(strings.buffer, starts[rows], lengths[rows].astype(np.int64))
            records.point(name, at)


def _with_compression(
    all_refs: list[ChunkRefs], policy: LocationCompression | None
) -> tuple[bytes | None, list[ChunkRefs]]:
    """Return the dictionary to write, and the references compressed with it or plain."""
    num_virtual = sum(int((refs.kind == KIND_VIRTUAL).sum()) for refs in all_refs)
    if policy is None or num_virtual < policy.min_num_chunks:
        return None, [refs.with_plain_locations() for refs in all_refs]
    strings = [refs.strings for refs in all_refs if refs.strings is not None]
    dictionaries = {own.dictionary for own in strings} - {None}
    if len(dictionaries) == 1:
        (dictionary,) = dictionaries
    else:
        all_refs = [refs.with_plain_locations() for refs in all_refs]
        dictionary = train_dictionary(
            _samples(all_refs, policy.dictionary_max_training_samples),
            max_size=policy.dictionary_max_size_bytes,
            level=policy.compression_level,
        )
    if dictionary is None:
        return None, all_refs
    return dictionary, [_compressed(refs, dictionary, policy) for refs in all_refs]


def _samples(all_refs: list[ChunkRefs], count: int) -> list[bytes]:
    """Return plain locations spread evenly over all virtual references."""
    virtual = [(refs, np.flatnonzero(refs.kind == KIND_VIRTUAL)) for refs in all_refs]
    total = sum(len(rows) for _, rows in virtual)
    step = max(1, total // max(1, count))
    samples: list[bytes] = []
    for refs, rows in virtual:
        if refs.strings is not None:
            samples += [refs.strings.raw(row) for row in rows[::step].tolist()]
    return samples[:count]


def _compressed(refs: ChunkRefs, dictionary: bytes, policy: LocationCompression) -> ChunkRefs:
    strings = refs.strings
    if strings is None:
        return refs
    is_plain = refs.kind == KIND_VIRTUAL
    if strings.is_compressed is not None:
        is_plain &= ~strings.is_compressed
    # Readers refuse to decompress longer locations, but accept them uncompressed.
    rows = np.flatnonzero(is_plain & (strings.lengths <= MAX_LOCATION_SIZE))
    if not rows.size:
        return refs
    return refs.with_strings(
        strings.compressed(rows, dictionary, compression_level=policy.compression_level)
    )
