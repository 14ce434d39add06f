"""The draft with a state file: ``state.json``, and Parquet files in ``s/`` and ``i/``.

Decisions where the draft is silent
-----------------------------------
1. **Names of files** are keys within their folder: structure files in ``s/``, manifests in ``i/``,
   chunks in ``c/``; ``.parquet`` is tried where a name has no such object. No name leaves its
   folder.
2. **``store_root``** elsewhere than the state file is never followed by itself, because it comes
   from an untrusted file; whoever opens the draft gives it as ``store_root``.
3. **Branch ``main``.** A draft without refs has a branch ``main`` at its newest version.
4. **Fill values** are the bytes of one element, little-endian; bytes of another number are JSON
   text. Missing ones are zero.
5. **Configurations of codecs** and **attributes** are JSON text.
6. **Coordinates** of chunks are one big-endian unsigned number per axis, all of the same size (1,
   2, 4 or 8 bytes): as short as numbers allow, sorted as bytes, comparable in Arrow.
7. **``chunk_file``** with ``://`` is the URL of a virtual chunk; otherwise a name in ``c/``. A
   missing ``offset`` is 0. A row with ``inline_data`` needs no file.
8. ``row`` and ``extent`` of ``inventories`` and ``flags`` are hints, and not needed.
9. **Widths of integers.** 16 bits hold neither shapes nor chunk counts of real arrays, so wider
   columns of the same names are read as well.
10. Attributes in files of their own (an open question in the draft) are refused.

Specification: drafts, "state file".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from icechunk_format.drafts.model import DraftNode, DraftRepository, DraftSnapshot
from icechunk_format.drafts.records import Record, decode_record, read_object
from icechunk_format.drafts.state_tables import read_chunk_table, read_structure
from icechunk_format.errors import FormatError, InvalidInputError, NotFoundError
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import check_key

if TYPE_CHECKING:
    from icechunk_format.drafts.model import DraftChunks
    from icechunk_format.storage.protocol import Storage

STATE: Final = "state.json"
STRUCTURES: Final = "s/"
MANIFESTS: Final = "i/"
CHUNKS: Final = "c/"
MAIN: Final = "main"

_FILE_TYPE: Final = "draft state"
_MAX_MILLISECONDS: Final = 2**62 // 1000


class StateFileRepository(DraftRepository):
    """A repository of the draft with a state file; see the head of this file.

    Parameters
    ----------
    location, storage
        Where the state file is.
    store_root
        Where the other files are; None for the same place.

    Raises
    ------
    FormatError
        The state file is damaged.
    InvalidInputError
        It keeps its files elsewhere, and ``store_root`` does not say where.
    """

    kind = "state file"

    def __init__(
        self, location: Location, storage: Storage, store_root: Location | None = None
    ) -> None:
        super().__init__(location, storage if store_root is None else open_storage(store_root))
        data = read_object(storage, STATE, _FILE_TYPE)
        self._state = decode_record(data, object_key=STATE, file_type=_FILE_TYPE)
        self._state.text("id")
        self._state.integer("generation")
        if store_root is None:
            self._check_root()
        self._snapshots: dict[str, DraftSnapshot] = {}
        self._structures: dict[str, str] = {}
        for item in self._state.records("snapshots"):
            self._add_snapshot(item)
        self._refs: dict[str, dict[str, str]] = {"branch": {}, "tag": {}}
        refs = self._state.mapping("refs", optional=True)
        for name, value in refs.items():
            self._add_ref(name, self._state.at(value, f"refs.{name}"))
        if not refs and self._snapshots:
            newest = max(self._snapshots.values(), key=lambda found: found.written_at)
            self._refs["branch"][MAIN] = newest.id

    def branches(self) -> dict[str, str]:
        """Return every branch and the id of its newest version, sorted by name."""
        return dict(sorted(self._refs["branch"].items()))

    def tags(self) -> dict[str, str]:
        """Return every tag and the id of its version, sorted by name."""
        return dict(sorted(self._refs["tag"].items()))

    def properties(self) -> dict[str, Any]:
        """Return the id of the dataset and how often its state file was written."""
        return {"id": self._state.text("id"), "generation": self._state.integer("generation")}

    def snapshot(self, snapshot_id: str) -> DraftSnapshot:
        """Return one version."""
        found = self._snapshots.get(snapshot_id)
        if found is None:
            raise NotFoundError(
                f"there is no snapshot {snapshot_id!r} in the draft at {self.location}; there are "
                f"{len(self._snapshots)}, such as {', '.join(list(self._snapshots)[:3])}",
                kind="snapshot",
                name=snapshot_id,
            )
        return found

    def nodes(self, snapshot_id: str) -> list[DraftNode]:
        """Return the nodes of a version, sorted by path."""
        self.snapshot(snapshot_id)
        key = self._existing(STRUCTURES, self._structures[snapshot_id])
        data = read_object(self.storage, key, "draft structure")
        return read_structure(data, key, lambda name: self._existing(MANIFESTS, name))

    def read_manifest(self, object_key: str, node: DraftNode) -> DraftChunks:
        """Return the references of one array in one manifest."""
        data = read_object(self.storage, object_key, "draft manifest")
        return read_chunk_table(data, object_key, node, CHUNKS)

    def _check_root(self) -> None:
        root = self._state.text("store_root", "").rstrip("/")
        if root in ("", ".", self.location.url.rstrip("/"), self.storage.root_url.rstrip("/")):
            return
        raise InvalidInputError(
            f"the state file at {self.location} keeps its data at {root!r}; open it with "
            "store_root set to that place, if you trust it",
            store_root=root,
        )

    def _add_snapshot(self, item: Record) -> None:
        own = item.text("snapshot-id")
        if own in self._snapshots:
            raise item.error(f"{own!r} is listed twice", "snapshot-id")
        properties = item.mapping("properties", optional=True)
        # The draft has no field for a message; where writers put one, it is a property.
        message = properties.get("message")
        self._snapshots[own] = DraftSnapshot(
            id=own,
            parent_id=item.text("parent-snapshot-id") if item.has("parent-snapshot-id") else None,
            written_at=item.integer("timestamp-ms", 0, _MAX_MILLISECONDS) * 1000,
            message=message if isinstance(message, str) else "",
            properties=properties,
        )
        self._structures[own] = item.text("structure-file")

    def _add_ref(self, name: str, item: Record) -> None:
        if item.text("name", name) != name:
            raise item.error(f"it is listed as {name!r}", "name")
        target = item.text("snapshot-id")
        if target not in self._snapshots:
            raise item.error(f"{target!r} is not among the snapshots", "snapshot-id")
        kind = item.text("type")
        if kind not in self._refs:
            raise item.error(f"{kind!r} is neither 'branch' nor 'tag'", "type")
        self._refs[kind][name] = target

    def _existing(self, folder: str, name: str) -> str:
        key = folder + name
        try:
            check_key(key)
        except InvalidInputError as error:
            raise FormatError(error.message, object_key=STATE, file_type=_FILE_TYPE) from error
        if self.storage.head(key) is None and not name.endswith(".parquet"):
            longer = f"{key}.parquet"
            if self.storage.head(longer) is not None:
                return longer
        return key
