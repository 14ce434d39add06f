"""Reads and writes, as columns, the manifests of each array and the manifest files of a snapshot.

One array may have a hundred thousand manifests, so entries never become objects.

Rules of this file
------------------
1. NumPy gathers read the manifest refs of all arrays of a snapshot; `snapshot.nodes` slices them by
   array, and `encode_nodes` writes them.
2. Extents without ranges mean the whole grid, as for existing readers.
3. The tables of the list of files are written as one block of bytes.

Specification: ``ManifestRef``, ``ManifestFileInfo`` and ``ManifestFileInfoV2`` of ``snapshot.fbs``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icechunk_format.encoding.ids import ManifestId, id_keys, rows_of_ids
from icechunk_format.encoding.tables.bulk_reader import Ranges, VectorReader
from icechunk_format.encoding.tables.bulk_writer import TableLayout, write_rows
from icechunk_format.encoding.tables.byte_ranges import copy_ranges, ragged_rows, starts_of
from icechunk_format.encoding.tables.reader import Table
from icechunk_format.encoding.tables.schema import TableSchema
from icechunk_format.encoding.tables.writer import TableWriter
from icechunk_format.errors import InvalidInputError

_ID = ManifestId.SIZE
_RANGE_SIZE = 8
_V1_FILE = np.dtype(
    {
        "names": ["id", "size_bytes", "num_chunk_refs"],
        "formats": [("u1", (_ID,)), "<u8", "<u4"],
        "offsets": [0, 16, 24],
        "itemsize": 32,
    }
)
MANIFEST_REF = TableSchema("ManifestRef", object_id="id12", extents="offset")
MANIFEST_FILE = TableSchema(
    "ManifestFileInfoV2", id="id12", size_bytes="u64", num_chunk_refs="u32", extra="offset"
)
_V2_FILE = TableLayout(MANIFEST_FILE)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ManifestRefs:
    """The manifests with the chunk references of one array.

    ``ids`` are uint8 of shape (n, 12). ``extents`` are uint32 of shape (n, ndim, 2): the range of
    chunk coordinates of each manifest along each dimension, end exclusive.
    """

    ids: NDArray[np.uint8]
    extents: NDArray[np.uint32]

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or self.ids.shape[1] != _ID or self.ids.dtype != np.uint8:
            raise InvalidInputError(
                f"manifest ids must be uint8 of shape (n, {_ID}), found {self.ids.dtype} of shape "
                f"{self.ids.shape}",
                found=self.ids.shape,
                allowed=("n", _ID),
            )
        n = len(self.ids)
        if (
            self.extents.ndim != 3
            or (self.extents.shape[0], self.extents.shape[2]) != (n, 2)
            or self.extents.dtype != np.uint32
        ):
            raise InvalidInputError(
                f"extents must be uint32 of shape ({n}, ndim, 2), found {self.extents.dtype} of "
                f"shape {self.extents.shape}",
                found=self.extents.shape,
                allowed=(n, "ndim", 2),
            )
        object.__setattr__(self, "ids", _frozen(self.ids))
        object.__setattr__(self, "extents", _frozen(self.extents))

    @classmethod
    def empty(cls, ndim: int) -> ManifestRefs:
        """Return the list of an array without chunks."""
        return cls(
            ids=np.zeros((0, _ID), dtype=np.uint8), extents=np.zeros((0, ndim, 2), dtype=np.uint32)
        )

    @property
    def ndim(self) -> int:
        """Number of dimensions of the array."""
        return int(self.extents.shape[1])

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ManifestRefs):
            return NotImplemented
        return np.array_equal(self.ids, other.ids) and np.array_equal(self.extents, other.extents)

    def manifest_id(self, row: int) -> ManifestId:
        """Return the id of one manifest."""
        return ManifestId(self.ids[row].tobytes())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ManifestFiles:
    """All manifest files of a snapshot, sorted by id.

    Parameters
    ----------
    size_bytes
        Exact sizes of the objects, header included; 0 if unknown.
    num_chunk_refs
        References in each manifest, over all its arrays.
    """

    ids: NDArray[np.uint8]
    size_bytes: NDArray[np.uint64]
    num_chunk_refs: NDArray[np.uint32]

    def __post_init__(self) -> None:
        n = len(self.ids)
        shapes = (self.ids.shape, self.size_bytes.shape, self.num_chunk_refs.shape)
        if shapes != ((n, _ID), (n,), (n,)):
            raise InvalidInputError(
                f"columns of manifest files must be (n, {_ID}), (n,), (n,), found {shapes}",
                found=shapes,
                allowed=((n, _ID), (n,), (n,)),
            )
        for name in ("ids", "size_bytes", "num_chunk_refs"):
            object.__setattr__(self, name, _frozen(getattr(self, name)))

    @classmethod
    def empty(cls) -> ManifestFiles:
        """Return the list of a snapshot without chunks."""
        return cls(
            ids=np.zeros((0, _ID), dtype=np.uint8),
            size_bytes=np.zeros(0, dtype=np.uint64),
            num_chunk_refs=np.zeros(0, dtype=np.uint32),
        )

    @classmethod
    def of(
        cls,
        ids: NDArray[np.uint8],
        size_bytes: NDArray[np.uint64],
        num_chunk_refs: NDArray[np.uint32],
    ) -> ManifestFiles:
        """Sort the columns by id and drop repeated ids."""
        ids = np.ascontiguousarray(ids, dtype=np.uint8).reshape(-1, _ID)
        order = np.unique(id_keys(ids), return_index=True)[1]
        return cls(
            ids=ids[order],
            size_bytes=np.asarray(size_bytes, dtype=np.uint64)[order],
            num_chunk_refs=np.asarray(num_chunk_refs, dtype=np.uint32)[order],
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ManifestFiles):
            return NotImplemented
        return (
            np.array_equal(self.ids, other.ids)
            and np.array_equal(self.size_bytes, other.size_bytes)
            and np.array_equal(self.num_chunk_refs, other.num_chunk_refs)
        )

    def sizes_of(self, ids: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the bytes of the files with these ids; 0 for unlisted ones."""
        return self._listed(self.size_bytes, ids)

    def counts_of(self, ids: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the number of references in the files with these ids; 0 for unlisted ones."""
        return self._listed(self.num_chunk_refs, ids)

    def _listed(self, column: NDArray[Any], ids: NDArray[np.uint8]) -> NDArray[np.int64]:
        rows = rows_of_ids(self.ids, ids)
        found = np.zeros(len(ids), dtype=np.int64)
        found[rows >= 0] = column[rows[rows >= 0]]
        return found


def read_manifest_refs(
    root: Table,
    reader: VectorReader,
    spans: Ranges,
    *,
    ndims: NDArray[np.int64],
    num_chunks: NDArray[np.uint32],
) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Return ids and extents of the manifests of all arrays of a snapshot."""
    field = "nodes.node_data.manifests"
    counts = spans.lengths
    total = int(counts.sum())
    # Arrays may share their vectors of references within the budget.
    root.charge(field, 64 * total)
    tables = reader.tables_of(spans, MANIFEST_REF, field)
    tables.require("object_id", "extents")
    ids = tables.column("object_id")
    ranges = tables.ranges("extents", _RANGE_SIZE)
    ndim_of_row = np.repeat(ndims, counts)
    is_whole = (ranges.lengths == 0) & (ndim_of_row > 0)
    is_bad = (ranges.lengths != ndim_of_row) & ~is_whole
    if is_bad.any():
        row = int(is_bad.argmax())
        raise root.error(
            f"{field}.extents",
            f"a reference has {int(ranges.lengths[row])} ranges, but its array has "
            f"{int(ndim_of_row[row])} dimensions",
        )
    root.charge(f"{field}.extents", _RANGE_SIZE * int(ndim_of_row.sum()))
    extents = np.zeros((int(ndim_of_row.sum()), 2), dtype=np.uint32)
    copy_ranges(
        reader.data,
        ranges.starts,
        extents.view(np.uint8).reshape(-1),
        _RANGE_SIZE * starts_of(ndim_of_row),
        _RANGE_SIZE * ranges.lengths,
    )
    if is_whole.any():
        dimensions = ragged_rows(np.repeat(starts_of(ndims), counts), ndim_of_row)
        is_whole_extent = np.repeat(is_whole, ndim_of_row)
        extents[is_whole_extent, 1] = num_chunks[dimensions[is_whole_extent]]
    if (extents[:, 0] > extents[:, 1]).any():
        raise root.error(f"{field}.extents", "a range ends before it starts")
    return ids, extents


def read_manifest_files(root: Table) -> ManifestFiles:
    """Read the list of files of spec version 2 if it is present, else that of version 1."""
    span = root.vector("manifest_files_v2", 4)
    if span is None:
        records = root.records("manifest_files", _V1_FILE)
        return ManifestFiles.of(records["id"], records["size_bytes"], records["num_chunk_refs"])
    root.charge("manifest_files_v2", 64 * span[1])
    reader = VectorReader(root.payload, object_key=root.object_key, file_type=root.file_type)
    tables = reader.tables_between(*span, MANIFEST_FILE, "manifest_files_v2")
    tables.require("id")
    return ManifestFiles.of(
        tables.column("id"), tables.column("size_bytes"), tables.column("num_chunk_refs")
    )


def write_manifest_files_v1(writer: TableWriter, files: ManifestFiles) -> int:
    """Write the list of spec version 1; return its handle."""
    rows = _rows(files, _V1_FILE)
    return writer.records(rows.tobytes(), count=len(rows), alignment=8)


def write_manifest_files_v2(writer: TableWriter, files: ManifestFiles) -> int:
    """Write the list of spec version 2; return its handle."""
    if not len(files):
        return writer.offsets(())
    return writer.offsets(write_rows(writer, _rows(files, _V2_FILE.dtype), _V2_FILE))


def _rows(files: ManifestFiles, dtype: np.dtype[Any]) -> NDArray[Any]:
    rows = np.zeros(len(files), dtype=dtype)
    rows["id"] = files.ids
    rows["size_bytes"] = files.size_bytes
    rows["num_chunk_refs"] = files.num_chunk_refs
    return rows
