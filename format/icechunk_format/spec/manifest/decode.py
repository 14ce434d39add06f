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
3. Columns and texts are copied out, so that the decompressed file is freed. References can share
   texts; if copies would take more memory than the file, its texts are kept uncopied.

Spec: "Chunk Manifest Files"; field slots follow ``manifest.fbs``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.errors import UnsupportedError
from icechunk_format.spec.envelope import FileType, unwrap
from icechunk_format.spec.ids import ManifestId, NodeId
from icechunk_format.spec.manifest.chunk_refs import (
    CHUNK_ID_SIZE,
    KIND_INLINE,
    KIND_NATIVE,
    KIND_VIRTUAL,
    ChunkRefs,
)
from icechunk_format.spec.manifest.texts import RefTexts
from icechunk_format.spec.tables.bulk_reader import Tables, VectorReader


class ManifestSlot(IntEnum):
    """Slots of the root table."""

    ID = 0
    ARRAYS = 1
    LOCATION_DICTIONARY = 2
    COMPRESSION_ALGORITHM = 3


class ArrayManifestSlot(IntEnum):
    """Slots of ``ArrayManifest``."""

    NODE_ID = 0
    REFS = 1


class ChunkRefSlot(IntEnum):
    """Slots of ``ChunkRef``."""

    INDEX = 0
    INLINE = 1
    OFFSET = 2
    LENGTH = 3
    CHUNK_ID = 4
    LOCATION = 5
    CHECKSUM_ETAG = 6
    CHECKSUM_LAST_MODIFIED = 7
    COMPRESSED_LOCATION = 8


class CompressionAlgorithm(IntEnum):
    """Compression of ``compressed_location``; the format's default is the dictionary."""

    NONE = 0
    ZSTD_DICTIONARY = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArrayManifest:
    """The references of one array in one manifest."""

    node_id: NodeId
    refs: ChunkRefs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
    root = reader.root("manifest")
    root.require(ManifestSlot.ID, "id")
    (arrays,) = root.table_vectors(ManifestSlot.ARRAYS, "arrays")
    arrays.require(ArrayManifestSlot.NODE_ID, "node_id")
    node_ids = arrays.structs(ArrayManifestSlot.NODE_ID, "node_id", NodeId.SIZE)
    decoder = _RefsDecoder(reader, _dictionary(reader, root), object_key)
    return Manifest(
        id=ManifestId(root.structs(ManifestSlot.ID, "id", ManifestId.SIZE).tobytes()),
        arrays=tuple(
            ArrayManifest(node_id=NodeId(node_id.tobytes()), refs=decoder.decode(tables))
            for node_id, tables in zip(
                node_ids, arrays.table_vectors(ArrayManifestSlot.REFS, "refs"), strict=True
            )
        ),
    )


def _dictionary(reader: VectorReader, root: Tables) -> bytes | None:
    """Return the dictionary of compressed locations; None without compression."""
    algorithm = int(
        root.scalars(
            ManifestSlot.COMPRESSION_ALGORITHM,
            "compression_algorithm",
            "<u1",
            CompressionAlgorithm.ZSTD_DICTIONARY,
        )[0]
    )
    if algorithm == CompressionAlgorithm.NONE:
        return None
    if algorithm != CompressionAlgorithm.ZSTD_DICTIONARY:
        raise UnsupportedError(
            f"a manifest compresses locations with the unknown algorithm {algorithm}; supported "
            "are 0 (none) and 1 (zstd with a dictionary). Upgrade icechunk-spark to read it",
            found=algorithm,
            allowed=tuple(CompressionAlgorithm),
        )
    if not root.has_all(ManifestSlot.LOCATION_DICTIONARY, "location_dictionary"):
        return None
    found = root.ranges(ManifestSlot.LOCATION_DICTIONARY, "location_dictionary")
    start, length = int(found.starts[0]), int(found.lengths[0])
    return reader.data[start : start + length].tobytes()


class _RefsDecoder:
    """Reads vectors of ``ChunkRef`` tables as columns, within the size of the file."""

    def __init__(self, reader: VectorReader, dictionary: bytes | None, object_key: str) -> None:
        self._reader = reader
        self._dictionary = dictionary
        self._object_key = object_key
        self._coords_left = reader.data.size
        self._texts_left = reader.data.size

    def decode(self, tables: Tables) -> ChunkRefs:
        coords = tables.matrix(ChunkRefSlot.INDEX, "index", "<u4")
        self._coords_left -= coords.nbytes
        if self._coords_left < 0:
            self._reader.fail("chunk coordinates take more bytes than the file has", "refs.index")
        offset = tables.scalars(ChunkRefSlot.OFFSET, "offset", "<u8")
        length = tables.scalars(ChunkRefSlot.LENGTH, "length", "<u8")
        kind = np.full(len(tables), KIND_NATIVE, dtype=np.uint8)
        texts = None
        if not tables.has_all(ChunkRefSlot.CHUNK_ID, "chunk_id"):
            has_id = tables.has(ChunkRefSlot.CHUNK_ID, "chunk_id")
            texts = self._texts(tables, has_id, kind)
            is_inline = kind == KIND_INLINE
            if is_inline.any():
                offset[is_inline] = 0
                length[is_inline] = texts.lengths[is_inline]
            texts = self._own(texts)
        return ChunkRefs(
            coords=coords,
            kind=kind,
            chunk_id=tables.structs(ChunkRefSlot.CHUNK_ID, "chunk_id", CHUNK_ID_SIZE),
            offset=offset,
            length=length,
            last_modified=tables.scalars(
                ChunkRefSlot.CHECKSUM_LAST_MODIFIED, "checksum_last_modified", "<u4"
            ),
            texts=texts,
        ).sorted()

    def _texts(
        self, tables: Tables, has_id: NDArray[np.bool_], kind: NDArray[np.uint8]
    ) -> RefTexts:
        """Fill in ``kind``, and return the texts as ranges of the file."""
        is_open = ~has_id
        starts = np.zeros(len(tables), dtype=np.int64)
        lengths = np.zeros(len(tables), dtype=np.uint32)
        columns: dict[str, Any] = {}
        for slot, name, meaning in (
            (ChunkRefSlot.COMPRESSED_LOCATION, "compressed_location", KIND_VIRTUAL),
            (ChunkRefSlot.LOCATION, "location", KIND_VIRTUAL),
            (ChunkRefSlot.INLINE, "inline", KIND_INLINE),
        ):
            rows = np.flatnonzero(tables.has(slot, name) & is_open)
            if not rows.size:
                continue
            found = tables.ranges(slot, name)
            # Usually all references are of one kind, and columns are taken whole.
            chosen = slice(None) if rows.size == len(tables) else rows
            starts[chosen], lengths[chosen] = found.starts[chosen], found.lengths[chosen]
            kind[chosen] = meaning
            is_open[chosen] = False
            if slot == ChunkRefSlot.COMPRESSED_LOCATION:
                columns["is_compressed"] = ~is_open & ~has_id
                columns["dictionary"] = self._dictionary
        if is_open.any():
            self._reader.fail(
                "a reference has neither chunk id, nor location, nor inline bytes", "refs"
            )
        has_etag = tables.has(ChunkRefSlot.CHECKSUM_ETAG, "checksum_etag") & (kind == KIND_VIRTUAL)
        if has_etag.any():
            etags = tables.ranges(ChunkRefSlot.CHECKSUM_ETAG, "checksum_etag")
            columns["etag_starts"] = np.where(has_etag, etags.starts, -1)
            columns["etag_lengths"] = np.where(has_etag, etags.lengths, 0).astype(np.uint32)
        return RefTexts(
            buffer=self._reader.data,
            starts=starts,
            lengths=lengths,
            object_key=self._object_key,
            **columns,
        )

    def _own(self, texts: RefTexts) -> RefTexts:
        """Copy the texts out of the file, unless sharing within it would multiply them."""
        claimed = texts.used_bytes()
        if claimed > self._texts_left:
            return texts
        self._texts_left -= claimed
        return texts.compact()
