"""Reads the draft with a state file: ``state.json``, and Parquet files in ``s/`` and ``i/``.

Choices that the draft leaves open
----------------------------------
1. **Names of files** are keys within ``s/`` (structure files), ``i/`` (manifests) or ``c/``
   (chunks), without leaving the folder; ``.parquet`` is appended if no such object exists.
2. **Branch ``main``.** A draft without refs has a branch ``main`` at its newest snapshot.
3. **Fill values** are the bytes of one little-endian element; bytes of another length are JSON,
   like **configurations of codecs** and **attributes**. A **message** is a property.
4. **Coordinates** of chunks are one big-endian unsigned number per axis, all of the same size (1,
   2, 4 or 8 bytes).
5. **``chunk_file``** with ``://`` is the URL of a virtual chunk. A missing ``offset`` is 0. A row
   with ``inline_data`` has no file.
6. **Ignored** are ``row`` and ``extent`` of ``inventories``, and ``flags``.
7. **Widths of integers.** Wider columns are also read, since shapes and chunk counts of real arrays
   exceed 16 bits.

Specification: drafts, "state file".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icechunk_format.drafts.model import (
    DraftChunk,
    DraftNode,
    DraftSnapshot,
    array_document,
    make_node,
)
from icechunk_format.drafts.records import MAX_RECORD_BYTES, Field, read_object, read_record
from icechunk_format.encoding.manifest.chunk_refs import KIND_INLINE, KIND_NATIVE, KIND_VIRTUAL
from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.storage.protocol import Storage, check_key

STATE: Final = "state.json"

_MAX_MILLISECONDS: Final = 2**62 // 1000
_MAX_ROWS: Final = 100_000_000
_NODES: Final = (
    *("id", "type", "path"),
    *("array_metadata", "inline_attrs", "attrs_reference", "inventories"),
)
_CHUNKS: Final = ("array_id", "coord", "inline_data", "chunk_file", "offset", "length")


class StateFile:
    """Reads this draft: the state file, and the other files in a second storage."""

    kind = "state file"

    def __init__(self, storage: Storage, data: Storage) -> None:
        self.storage = data
        state = read_record(storage, STATE, "draft state")
        self.store_root = state.get("store_root", "").of(str).rstrip("/")
        self.properties = {"id": state["id"].of(str), "generation": state["generation"].integer()}
        self._records: dict[str, Field] = {}
        versions = []
        for record in state["snapshots"].items():
            versions.append(self.snapshot(record))
            if versions[-1].id in self._records:
                raise record.error(f"{versions[-1].id!r} is listed twice")
            self._records[versions[-1].id] = record
        self.branches: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        for name, ref in state.get("refs", {}).fields():
            snapshot_id, kind = ref["snapshot-id"].of(str), ref["type"].value
            if snapshot_id not in self._records or ref.value.get("name", name) != name:
                raise ref.error("expected its own name and the id of a listed snapshot")
            if kind not in ("branch", "tag"):
                raise ref["type"].error(f"{kind!r} is neither 'branch' nor 'tag'")
            (self.branches if kind == "branch" else self.tags)[name] = snapshot_id
        if not (self.branches or self.tags) and versions:
            self.branches["main"] = max(versions, key=lambda version: version.written_at).id

    def record(self, snapshot_id: str) -> Field | None:
        """Return the record of one snapshot."""
        return self._records.get(snapshot_id)

    def snapshot(self, record: Field) -> DraftSnapshot:
        """Parse the record of a snapshot."""
        properties = record.get("properties", {}).mapping()
        message = properties.get("message")
        record["structure-file"].of(str)
        return DraftSnapshot(
            id=record["snapshot-id"].of(str),
            parent_id=record.get("parent-snapshot-id").maybe(lambda found: found.of(str)),
            written_at=record["timestamp-ms"].integer(0, _MAX_MILLISECONDS) * 1000,
            message=message if isinstance(message, str) else "",
            properties=properties,
        )

    def nodes(self, record: Field) -> Iterator[DraftNode]:
        """Read the nodes of a snapshot."""
        key = self._key("s/", record["structure-file"])
        for row in self._rows(key, "draft structure", _NODES):
            yield self._node(row)

    def _node(self, record: Field) -> DraftNode:
        attributes = record.get("inline_attrs", {}).json()
        if record.get("attrs_reference").value is not None:
            attributes = None
        if record["type"].value == "group":
            return make_node(record, attributes)
        if record["type"].value != "array":
            raise record["type"].error("expected 'array' or 'group'")
        fields = record["array_metadata"]
        grid, data_type = fields["chunk_grid"], fields["data_type"]
        if grid["name"].value != "regular":
            path = record["path"].of(str)
            raise UnsupportedError(
                f"the chunk grid of array {path!r} is not regular", node_path=path
            )
        array = array_document(
            fields,
            data_type.json() if data_type.of(str).startswith("{") else data_type.value,
            grid["configuration"]["chunk_shape"],
            fields.get("fill_value").maybe(Field.raw),
        )
        files = record.get("inventories", []).items()
        keys = [self._key("i/", file["inventory_file"]) for file in files]
        return make_node(record, attributes, array, keys)

    def chunks(self, object_key: str, node: DraftNode) -> Iterator[DraftChunk]:
        """Read the references of one array in a manifest."""
        ndim = 0 if node.array is None else node.array.ndim
        for ref in self._rows(object_key, "draft manifest", _CHUNKS, node.id):
            at, inline = ref["coord"].raw(), ref.get("inline_data").maybe(Field.raw)
            width = len(at) // max(ndim, 1)
            if len(at) != width * ndim or width not in ((1, 2, 4, 8) if ndim else (0,)):
                raise ref["coord"].error(f"expected {ndim} numbers of 1, 2, 4 or 8 bytes")
            coords = [int.from_bytes(at[i * width : (i + 1) * width], "big") for i in range(ndim)]
            if inline is not None:
                yield coords, KIND_INLINE, inline, 0, len(inline)
                continue
            kind, payload = KIND_VIRTUAL, ref["chunk_file"].of(str)
            if "://" not in payload:
                kind, payload = KIND_NATIVE, _checked_key("c/", ref["chunk_file"])
            start, length = ref.get("offset", 0).integer(), ref["length"].integer()
            yield coords, kind, payload.encode(), start, length

    def _key(self, folder: str, name: Field) -> str:
        key = _checked_key(folder, name)
        longer = f"{key}.parquet"
        if self.storage.head(key) is None and self.storage.head(longer) is not None:
            return longer
        return key

    def _rows(
        self, key: str, file_type: str, columns: tuple[str, ...], array_id: int | None = None
    ) -> Iterator[Field]:
        """Yield the rows of a Parquet file; ``array_id`` limits them to one array."""
        whole = Field(None, key, file_type)
        data = read_object(self.storage, key, file_type)
        # For damaged files, Arrow also raises OSError and ValueError.
        try:
            file = pq.ParquetFile(pa.BufferReader(data))
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            size = sum(group.total_byte_size for group in groups)
            if size > MAX_RECORD_BYTES or file.metadata.num_rows > _MAX_ROWS:
                raise whole.error("it is too large")
            names = [name for name in columns if name in file.schema_arrow.names]
            for batch in file.iter_batches(columns=names):
                # Raises for strings that are not UTF-8, and for invalid offsets.
                batch.validate(full=True)
                if array_id is not None:
                    batch = batch.filter(pc.equal(batch["array_id"], array_id))
                for row in batch.to_pylist():
                    yield Field(row, key, file_type)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise whole.error(f"it is not readable Parquet ({error})") from error


def _checked_key(folder: str, name: Field) -> str:
    try:
        return check_key(folder + name.of(str))
    except InvalidInputError as error:
        raise name.error(error.message) from error
