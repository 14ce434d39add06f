"""Reads chunk manifests, which hold the references of one or several arrays.

A manifest is a few tables around one vector of ``ChunkRef`` tables per array. `tables.bulk_reader`
reads the vector as columns, which become ``ChunkRefs``. The writing side is `manifest.encode`.

Rules of this file
------------------
1. The kind of a reference follows from the fields that are present, in this order of precedence:
   ``chunk_id``, ``compressed_location``, ``location``, ``inline``. A table with none of them is
   damaged.
2. References out of order are sorted, because lookups are binary searches. Of several references
   with one coordinate the first is kept.
3. Columns and strings are copied out, so that the decompressed file is freed. References can share
   strings; if copies would take more memory than the file, its strings are kept uncopied.

Spec: "Chunk Manifest Files", schema ``manifest.fbs``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.envelope import FileType, unwrap
from icechunk_format.encoding.ids import ManifestId, NodeId
from icechunk_format.encoding.manifest.chunk_refs import (
    KIND_INLINE,
    KIND_NATIVE,
    KIND_VIRTUAL,
    ChunkRefs,
)
from icechunk_format.encoding.manifest.strings import RefStrings
from icechunk_format.encoding.tables.bulk_reader import Tables, VectorReader
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.errors import UnsupportedError

MANIFEST: Final = TableSchema(
    "Manifest",
    id="id12",
    arrays="offset",
    location_dictionary="offset",
    compression_algorithm="u8",
    extra="offset",
)
ARRAY_MANIFEST: Final = TableSchema("ArrayManifest", node_id="id8", refs="offset", extra="offset")
CHUNK_REF: Final = TableSchema(
    "ChunkRef",
    index="offset",
    inline="offset",
    offset="u64",
    length="u64",
    chunk_id="id12",
    location="offset",
    checksum_etag="offset",
    checksum_last_modified="u32",
    compressed_location="offset",
    extra="offset",
)


class CompressionAlgorithm(IntEnum):
    """Compression of ``compressed_location``; the format's default is the dictionary."""

    NONE = 0
    ZSTD_DICTIONARY = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayManifest:
    """The references of one array in one manifest."""

    node_id: NodeId
    refs: ChunkRefs


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class Manifest:
    """A chunk manifest: its id as recorded in the file, and the references of each array."""

    id: ManifestId
    arrays: tuple[ArrayManifest, ...]
    _by_node: dict[NodeId, ArrayManifest] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # If a damaged file has several entries for a node, the first is used.
        by_node = {entry.node_id: entry for entry in reversed(self.arrays)}
        object.__setattr__(self, "_by_node", by_node)

    def array(self, node_id: NodeId) -> ArrayManifest | None:
        """Return the references of one array; None if the manifest has no entry for it."""
        return self._by_node.get(node_id)

    @property
    def nbytes(self) -> int:
        """Memory of the references."""
        return sum(entry.refs.nbytes for entry in self.arrays)

    @property
    def num_chunk_refs(self) -> int:
        """Number of references of all arrays."""
        return sum(len(entry.refs) for entry in self.arrays)


def decode(data: bytes, *, object_key: str = "<bytes>") -> Manifest:
    """Read a manifest file; locations and etags are checked on access."""
    envelope = unwrap(data, file_type=FileType.MANIFEST, object_key=object_key)
    return decode_payload(envelope.payload, object_key=object_key)


def decode_payload(payload: bytes, *, object_key: str = "<bytes>") -> Manifest:
    """Read the decompressed flatbuffer of a manifest file; see ``decode``."""
    reader = VectorReader(payload, object_key=object_key, file_type="manifest")
    root = reader.root(MANIFEST, "manifest")
    root.require("id")
    (arrays,) = root.table_vectors("arrays", ARRAY_MANIFEST)
    arrays.require("node_id")
    decoder = _RefsDecoder(reader, _dictionary(reader, root), object_key)
    return Manifest(
        id=ManifestId(root.column("id").tobytes()),
        arrays=tuple(
            ArrayManifest(node_id=NodeId(node_id.tobytes()), refs=decoder.decode(tables))
            for node_id, tables in zip(
                arrays.column("node_id"), arrays.table_vectors("refs", CHUNK_REF), strict=True
            )
        ),
    )


def _dictionary(reader: VectorReader, root: Tables) -> bytes | None:
    """Return the dictionary of compressed locations; None without compression."""
    default = CompressionAlgorithm.ZSTD_DICTIONARY
    algorithm = int(root.column("compression_algorithm", default)[0])
    if algorithm == CompressionAlgorithm.NONE:
        return None
    if algorithm != CompressionAlgorithm.ZSTD_DICTIONARY:
        raise UnsupportedError(
            f"a manifest compresses locations with the unknown algorithm {algorithm}; supported "
            "are 0 (none) and 1 (zstd with a dictionary). Upgrade icechunk-spark to read it",
            found=algorithm,
            allowed=tuple(CompressionAlgorithm),
        )
    if not root.has_all("location_dictionary"):
        return None
    found = root.ranges("location_dictionary")
    start, length = int(found.starts[0]), int(found.lengths[0])
    return reader.data[start : start + length].tobytes()


class _RefsDecoder:
    """Reads vectors of ``ChunkRef`` tables as columns, within the size of the file."""

    def __init__(self, reader: VectorReader, dictionary: bytes | None, object_key: str) -> None:
        self._reader = reader
        self._dictionary = dictionary
        self._object_key = object_key
        self._coords_left = reader.data.size
        self._bytes_left = reader.data.size

    def decode(self, tables: Tables) -> ChunkRefs:
        coords = tables.coordinates("index")
        self._coords_left -= coords.nbytes
        if self._coords_left < 0:
            self._reader.fail("chunk coordinates take more bytes than the file has", "refs.index")
        offset, length = tables.column("offset"), tables.column("length")
        kind = np.full(len(tables), KIND_NATIVE, dtype=np.uint8)
        strings = None
        if not tables.has_all("chunk_id"):
            strings = self._strings(tables, kind)
            is_inline = kind == KIND_INLINE
            if is_inline.any():
                offset[is_inline] = 0
                length[is_inline] = strings.lengths[is_inline]
            strings = self._own(strings)
        return ChunkRefs(
            coords=coords,
            kind=kind,
            chunk_id=tables.column("chunk_id"),
            offset=offset,
            length=length,
            last_modified=tables.column("checksum_last_modified"),
            strings=strings,
        ).sorted()

    def _strings(self, tables: Tables, kind: NDArray[np.uint8]) -> RefStrings:
        """Fill in ``kind``, and return the strings as ranges of the file."""
        is_open = ~tables.has("chunk_id")
        starts = np.zeros(len(tables), dtype=np.int64)
        lengths = np.zeros(len(tables), dtype=np.uint32)
        columns: dict[str, Any] = {}
        for name, meaning in (
            ("compressed_location", KIND_VIRTUAL),
            ("location", KIND_VIRTUAL),
            ("inline", KIND_INLINE),
        ):
            rows = np.flatnonzero(tables.has(name) & is_open)
            if not rows.size:
                continue
            found = tables.ranges(name)
            # Usually all references are of one kind, and columns are taken whole.
            chosen = slice(None) if rows.size == len(tables) else rows
            starts[chosen], lengths[chosen] = found.starts[chosen], found.lengths[chosen]
            kind[chosen] = meaning
            is_open[chosen] = False
            if name == "compressed_location":
                columns["is_compressed"] = kind == KIND_VIRTUAL
                columns["dictionary"] = self._dictionary
        if is_open.any():
            self._reader.fail(
                "a reference has neither chunk id, nor location, nor inline bytes", "refs"
            )
        has_etag = tables.has("checksum_etag") & (kind == KIND_VIRTUAL)
        if has_etag.any():
            etags = tables.ranges("checksum_etag")
            columns["etag_starts"] = np.where(has_etag, etags.starts, -1)
            columns["etag_lengths"] = np.where(has_etag, etags.lengths, 0).astype(np.uint32)
        return RefStrings(
            buffer=self._reader.data,
            starts=starts,
            lengths=lengths,
            object_key=self._object_key,
            **columns,
        )

    def _own(self, strings: RefStrings) -> RefStrings:
        """Copy the strings out of the file, unless sharing within it would multiply them."""
        claimed = strings.used_bytes()
        if claimed > self._bytes_left:
            return strings
        self._bytes_left -= claimed
        return strings.compact()
