"""Reads the draft with numbered branch files in ``r/``, and records in ``s/``, ``m/`` and ``c/``.

Choices that the draft leaves open
----------------------------------
1. **Names of objects** are ids in Crockford base 32 or hexadecimal, without an extension or with
   ``.json`` or ``.msgpack``; the form last found in a folder is tried first.
2. **Parents.** The parent is the newest ancestor in ``short_term_history``. If several are equally
   new, or none is listed though ``total_parents`` is not zero, the parent is the snapshot of the
   previous branch file. A missing file of a parent ends the history.
3. **Keys of a manifest** are the number of the node and the chunk's coordinates, separated by
   non-digits: ``3/0/1``, ``3.0.1``, ``(3, [0, 1])``.
4. **Extents** of manifests are ignored: all manifests of an array are read.
5. A floating-point fill value of ``null`` is NaN, which JSON does not have.

Specification: drafts, "numbered refs".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Final

from icechunk_format.drafts.model import (
    DraftChunk,
    DraftNode,
    DraftSnapshot,
    array_document,
    make_node,
)
from icechunk_format.drafts.records import MAX_U32, Field, read_record
from icechunk_format.encoding.ids import ALPHABET, ObjectId
from icechunk_format.encoding.manifest.chunk_refs import KIND_INLINE, KIND_NATIVE, KIND_VIRTUAL
from icechunk_format.storage.protocol import Storage
from icechunk_format.zarr.fill_values import json_safe

_BRANCH_FILE: Final = re.compile(rf"r/([^/]+)/[{ALPHABET.decode()}]{{8}}\.json")
_TAG_FILE: Final = re.compile(r"r/([^/]+)\.json")
_ENDINGS: Final = ("", ".json", ".msgpack")
# Letters and signs are not separators: they would change the numbers.
_BETWEEN: Final = r"[^0-9A-Za-z+\-]"
_CHUNK_KEY: Final = re.compile(
    rf"{_BETWEEN}{{0,8}}[0-9]{{1,20}}(?:{_BETWEEN}{{1,8}}[0-9]{{1,20}})*{_BETWEEN}{{0,8}}"
)


class DraftId(ObjectId):
    """The id of an object of this draft."""

    SIZE: ClassVar[int] = 16


class NumberedRefs:
    """Reads this draft."""

    kind = "numbered refs"

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.branch_files: dict[str, list[str]] = {}
        self._tag_files: dict[str, str] = {}
        self._names: dict[str, int] = {}
        # Names of branch files count down, so the newest is first.
        for key in sorted(found.key for found in storage.list("r/")):
            if branch := _BRANCH_FILE.fullmatch(key):
                self.branch_files.setdefault(branch[1], []).append(key)
            elif tag := _TAG_FILE.fullmatch(key):
                self._tag_files[tag[1]] = key

    @property
    def branches(self) -> dict[str, str]:
        """Every branch with the id of its newest snapshot."""
        return {name: str(self._snapshot_id(keys[0])) for name, keys in self.branch_files.items()}

    @property
    def tags(self) -> dict[str, str]:
        """Every tag with the id of its snapshot."""
        return {name: str(self._snapshot_id(key)) for name, key in self._tag_files.items()}

    @property
    def properties(self) -> dict[str, Any]:
        """The properties of branches and tags."""
        keys = {f"branch {name}": keys[0] for name, keys in self.branch_files.items()}
        keys |= {f"tag {name}": key for name, key in self._tag_files.items()}
        found = {name: self._ref(key)["properties"].mapping() for name, key in keys.items()}
        return {"ref_properties": {name: value for name, value in found.items() if value}}

    def _ref(self, object_key: str) -> Field:
        return read_record(self.storage, object_key, "draft ref")

    def _snapshot_id(self, object_key: str) -> DraftId:
        return _id(self._ref(object_key)["snapshot"])

    def record(self, snapshot_id: str) -> Field | None:
        """Read the file of one snapshot."""
        found = DraftId.parse_exact(snapshot_id)
        key = None if found is None else self._find("s/", found)
        if key is None:
            return None
        record = read_record(self.storage, key, "draft snapshot")
        own = record["metadata"]["id"]
        if _id(own) != found:
            raise own.error(f"the file of {snapshot_id} has another id")
        return record

    def snapshot(self, record: Field) -> DraftSnapshot:
        """Parse the file of a snapshot."""
        own = record["metadata"]
        return DraftSnapshot(
            id=str(_id(own["id"])),
            parent_id=self._parent(_id(own["id"]), record),
            written_at=own["written_at"].timestamp(),
            message=own["message"].of(str),
            properties=record["properties"].mapping(),
        )

    def _parent(self, own: DraftId, record: Field) -> str | None:
        history = record["short_term_history"].items()
        times = {_id(item["id"]): item["written_at"].timestamp() for item in history}
        times.pop(own, None)
        newest = max(times.values(), default=None)
        last = [found for found, time in times.items() if time == newest]
        parent = last[0] if last else None
        if len(last) > 1 or (not last and record["total_parents"].integer(0, MAX_U32)):
            before = self._previous.get(own)
            parent = before if before in last or not last else parent
        return None if parent is None or self._find("s/", parent) is None else str(parent)

    @cached_property
    def _previous(self) -> dict[DraftId, DraftId]:
        """The snapshot of the previous branch file, by the snapshot of each branch file."""
        before: dict[DraftId, DraftId] = {}
        for keys in self.branch_files.values():
            for older, newer in pairwise(map(self._snapshot_id, reversed(keys))):
                if older != newer:
                    before.setdefault(newer, older)
        return before

    def nodes(self, record: Field) -> Iterator[DraftNode]:
        """Read the nodes of a snapshot."""
        for path, node in record["nodes"].fields():
            if node["path"].of(str) != path:
                raise node["path"].error(f"the node is listed as {path!r}")
            yield self._node(node)

    def _node(self, record: Field) -> DraftNode:
        attributes = record.get("user_attributes", {"Inline": {}}).get("Inline").value
        if record["node_data"].value == "Group":
            return make_node(record, attributes)
        parts = record["node_data"]["Array"].items()
        if len(parts) != 2:
            raise record["node_data"].error("an array must have metadata and a list of manifests")
        fields, manifests = parts
        if fields["chunk_key_encoding"].value not in ("Slash", "Dot", "Default"):
            raise fields["chunk_key_encoding"].error("expected Slash, Dot or Default")
        data_type = fields["data_type"].value
        if isinstance(data_type, dict):
            data_type = f"r{fields['data_type']['rawbits'].integer(8, 8 * MAX_U32)}"
        fill_value = _fill_value(fields["fill_value"], data_type)
        array = array_document(fields, data_type, fields["chunk_shape"], fill_value)
        ids = [_id(manifest["object_id"]) for manifest in manifests.items()]
        keys = [self._find("m/", found) or f"m/{found}" for found in ids]
        return make_node(record, attributes, array, keys)

    def chunks(self, object_key: str, node: DraftNode) -> Iterator[DraftChunk]:
        """Read the references of one array in a manifest."""
        for key, ref in read_record(self.storage, object_key, "draft manifest")["chunks"].fields():
            if len(key) > 2000 or not _CHUNK_KEY.fullmatch(key):
                raise ref.error("the key is not a node number with the coordinates of a chunk")
            number, *at = map(int, re.findall("[0-9]+", key))
            if number != node.id:
                continue
            tag, value = ref.tagged()
            if tag == "Inline":
                data = value.raw()
                yield at, KIND_INLINE, data, 0, len(data)
                continue
            if tag == "Virtual":
                kind, payload = KIND_VIRTUAL, value["location"].of(str)
            elif tag == "Ref":
                kind, payload = KIND_NATIVE, self._chunk_key(_id(value["id"]))
            else:
                raise ref.error(f"expected Inline, Virtual or Ref, found {tag!r}")
            yield at, kind, payload.encode(), value["offset"].integer(), value["length"].integer()

    def _chunk_key(self, chunk_id: DraftId) -> str:
        # All keys are assumed to have the form of the first: a request per chunk would be slow.
        if "c/" in self._names:
            return _spellings("c/", chunk_id)[self._names["c/"]]
        return self._find("c/", chunk_id) or f"c/{chunk_id}"

    def _find(self, folder: str, object_id: DraftId) -> str | None:
        """Return the key of the object with this id, or None."""
        keys = _spellings(folder, object_id)
        for key in (keys[self._names.get(folder, 0)], *keys):
            if self.storage.head(key) is not None:
                self._names[folder] = keys.index(key)
                return key
        return None


def _spellings(folder: str, object_id: DraftId) -> list[str]:
    names = (str(object_id), object_id.raw.hex())
    return [f"{folder}{name}{ending}" for ending in _ENDINGS for name in names]


def _id(field: Field) -> DraftId:
    return DraftId(field.raw(DraftId.SIZE))


def _fill_value(tagged: Field, data_type: str) -> Any:
    """Return the fill value as JSON of Zarr; its tag must match the data type of the array."""
    tag, value = tagged.tagged()
    if tag == "RawBits" and str(data_type).startswith("r"):
        return list(value.raw())
    if tag.lower() != data_type:
        raise tagged.error(f"a fill value {tag!r} does not fit the data type {data_type!r}")
    if tag.startswith("Complex"):
        return [_number(part.value) for part in value.items()]
    return _number(value.value)


def _number(value: Any) -> Any:
    return "NaN" if value is None else json_safe(value)
