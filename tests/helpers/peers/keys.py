"""The keys of a Zarr store over a session: documents are nodes, other keys are chunks."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from icechunk_format.encoding.snapshot.file import NodeSnapshot, Snapshot
from icechunk_format.errors import InvalidInputError, ReadOnlyError
from icechunk_format.repository.chunks import ChunkSource
from icechunk_format.repository.chunks.source import TO_END
from icechunk_format.repository.session.reads import current_refs
from icechunk_format.zarr.chunk_grid import parse_chunk_grid
from icechunk_format.zarr.zarr_json import parse_array_metadata, parse_group_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
    from icechunk_format.repository import Repository
    from icechunk_format.repository.session import WriteSession

Range = tuple[int | None, int | None]
"""Start and end; without an end, from the start on; without a start, the last bytes."""

DOCUMENT = "zarr.json"
_OF_FORMAT_2 = (".zarray", ".zattrs", ".zgroup", ".zmetadata")
_GROUP = b'{"attributes": {}, "zarr_format": 3, "node_type": "group"}'


class ReadView:
    """A snapshot with the methods that `SessionKeys` needs of a session."""

    def __init__(self, repository: Repository, snapshot: Snapshot) -> None:
        self.repository = repository
        self.snapshot = snapshot
        self.has_changes = False
        self.branch = None

    @property
    def snapshot_id(self) -> Any:
        return self.snapshot.id

    def nodes(self) -> list[NodeSnapshot]:
        return list(self.snapshot.nodes)

    def node(self, path: str) -> NodeSnapshot | None:
        return self.snapshot.node(path)

    def chunk_refs(self, path: str, lo: Sequence[int], hi: Sequence[int]) -> ChunkRefs:
        node, files = self.snapshot.node(path), self.snapshot.manifest_files
        assert node is not None
        return current_refs(self.repository.storage, node, None, files, lo, hi)


@dataclass(frozen=True)
class Place:
    """The node of a key, and the coordinates if it is a chunk."""

    path: str
    coords: tuple[int, ...] | None = None


class SessionKeys:
    """Reads, writes and lists the keys of a session; ``ReadView`` if it is only read."""

    def __init__(self, session: WriteSession | ReadView, chunks: ChunkSource) -> None:
        self.session = session
        self.chunks = chunks
        self.lock = threading.RLock()

    @property
    def read_only(self) -> bool:
        return isinstance(self.session, ReadView)

    # -- keys -----------------------------------------------------------------------------------

    def place(self, key: str) -> Place | None:
        """Return the place of a key; None for a chunk of an array that does not exist.

        Raises InvalidInputError for a key that is neither a document nor a chunk.
        """
        parts = key.split("/")
        if parts[-1] == DOCUMENT:
            return Place("/" + "/".join(parts[:-1]))
        if parts[-1] in _OF_FORMAT_2:
            return None
        for count in range(len(parts), -1, -1):
            node = self.session.node("/" + "/".join(parts[:count])) if all(parts) else None
            if node is not None and node.array is not None:
                coords = _parsed_coords(node, "/".join(parts[count:]))
                if coords is not None:
                    return Place(node.path, coords)
        marks = [i for i, part in enumerate(parts) if part == "c"]
        if marks and all(part.isdecimal() for part in parts[marks[-1] + 1 :]):
            return None
        raise InvalidInputError(f"{key!r} is neither a document nor a chunk of Zarr 3", name=key)

    def _chunk(self, place: Place) -> ChunkRefs | None:
        """Return the reference of a chunk in one row; None if it does not exist."""
        assert place.coords is not None
        node = self.session.node(place.path)
        if node is None or node.array is None or not _is_inside(node, place.coords):
            return None
        refs = self.session.chunk_refs(place.path, place.coords, [n + 1 for n in place.coords])
        return refs if len(refs) else None

    # -- reading --------------------------------------------------------------------------------

    def get(self, key: str, byte_range: Range = (None, None)) -> bytes | None:
        with self.lock:
            place = self.place(key)
            if place is None:
                return None
            if place.coords is None:
                node = self.session.node(place.path)
                if node is None:
                    return None
                start, end = _slice(len(node.user_data), byte_range)
                return bytes(node.user_data[start:end])
            refs = self._chunk(place)
            if refs is None:
                return None
            size = int(refs.length[0])
            start, end = _slice(size, byte_range)
            whole = (start, end) == (0, size)
            ranges = None if whole else np.array([[start, TO_END if end == size else end]])
            return bytes(self.chunks.fetch(refs, np.zeros(1, dtype=np.int64), ranges)[0])

    def size(self, key: str) -> int | None:
        with self.lock:
            place = self.place(key)
            if place is None:
                return None
            if place.coords is None:
                node = self.session.node(place.path)
                return None if node is None else len(node.user_data)
            refs = self._chunk(place)
            return None if refs is None else int(refs.length[0])

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield all keys with a prefix and their sizes."""
        with self.lock:
            found = []
            for node in self.session.nodes():
                base = node.path.strip("/")
                base = f"{base}/" if base else ""
                if not (base.startswith(prefix) or prefix.startswith(base)):
                    continue
                found.append((base + DOCUMENT, len(node.user_data)))
                if node.array is not None:
                    counts = node.array.num_chunks
                    refs = self.session.chunk_refs(node.path, [0] * len(counts), counts)
                    written = _writer_of_keys(node)
                    for row, coords in enumerate(refs.coords.tolist()):
                        found.append((base + written(coords), int(refs.length[row])))
        return iter([one for one in found if one[0].startswith(prefix)])

    def list_dir(self, prefix: str) -> list[str]:
        base = prefix.strip("/")
        base = f"{base}/" if base else ""
        below = (key[len(base) :].partition("/")[0] for key, _ in self.sizes(base))
        return list(dict.fromkeys(below))

    # -- writing --------------------------------------------------------------------------------

    def _writable(self) -> WriteSession:
        if isinstance(self.session, ReadView):
            raise ReadOnlyError("this session only reads; open a writable session")
        return self.session

    def set(self, key: str, value: bytes) -> None:
        with self.lock:
            session, place = self._writable(), self.place(key)
            if place is None:
                raise InvalidInputError(f"{key!r} is not of an array that exists", name=key)
            if place.coords is None:
                self._set_document(session, place.path, value)
            else:
                session.set_chunk(place.path, place.coords, value)

    def _set_document(self, session: WriteSession, path: str, value: bytes) -> None:
        node = session.node(path)
        document = json.loads(value)
        kind = document.get("node_type") if isinstance(document, dict) else None
        if kind == "array":
            metadata = parse_array_metadata(value, node_path=path)
            # A document is kept even if we cannot decode its chunks.
            grid = parse_chunk_grid(document["chunk_grid"], metadata.shape, node_path=path)
            given: dict[str, Any] = {
                "shape": metadata.shape,
                "num_chunks": [axis.count for axis in grid.axes],
                "dimension_names": metadata.dimension_names,
            }
        else:
            parse_group_metadata(value, node_path=path)
            given = {}
        if node is not None:
            is_same_kind = (node.array is not None) == (kind == "array")
            if is_same_kind and (
                node.array is None or len(node.array.shape) == len(given["shape"])
            ):
                session.update_metadata(path, value, **given)
                return
            session.delete(path)
        self._make_parents(session, path)
        if kind == "array":
            session.create_array(path, value, **given)
        else:
            session.create_group(path, value)

    def _make_parents(self, session: WriteSession, path: str) -> None:
        """Create missing groups above a node: zarr writes documents in any order."""
        if path == "/":
            return
        above = path.rpartition("/")[0] or "/"
        if session.node(above) is None:
            self._make_parents(session, above)
            session.create_group(above, _GROUP)

    def delete(self, key: str) -> None:
        with self.lock:
            session, place = self._writable(), self.place(key)
            if place is None:
                return
            node = session.node(place.path)
            if node is None:
                return
            if place.coords is None:
                session.delete(place.path)
            elif _is_inside(node, place.coords):
                session.delete_chunks(place.path, [place.coords])

    def delete_dir(self, prefix: str) -> None:
        with self.lock:
            session = self._writable()
            path = "/" + prefix.strip("/")
            if session.node(path) is not None:
                session.delete(path)
                return
            for key in [key for key, _ in self.sizes(path.strip("/") + "/")]:
                self.delete(key)

    def clear(self) -> None:
        with self.lock:
            session = self._writable()
            for node in session.nodes():
                if session.node(node.path) is not None:
                    session.delete(node.path)


def _slice(size: int, byte_range: Range) -> tuple[int, int]:
    start, end = byte_range
    if start is None and end is not None:
        return max(size - end, 0), size
    return min(start or 0, size), size if end is None else min(end, size)


def _is_inside(node: NodeSnapshot, coords: Sequence[int]) -> bool:
    counts = () if node.array is None else node.array.num_chunks
    return len(counts) == len(coords) and all(
        at < count for at, count in zip(coords, counts, strict=True)
    )


def _encoding(node: NodeSnapshot) -> tuple[str, str]:
    """Return the name and the separator of the encoding of an array's keys."""
    encoding = json.loads(node.user_data).get("chunk_key_encoding") or {}
    encoding = {"name": encoding} if isinstance(encoding, str) else encoding
    name = encoding.get("name", "default")
    separator = (encoding.get("configuration") or {}).get("separator")
    return name, separator or ("." if name == "v2" else "/")


def _parsed_coords(node: NodeSnapshot, rest: str) -> tuple[int, ...] | None:
    assert node.array is not None
    ndim = len(node.array.num_chunks)
    name, separator = _encoding(node)
    if name == "v2":
        parts = rest.split(separator) if ndim or rest != "0" else []
    else:
        mark, *parts = rest.split(separator)
        if mark != "c":
            return None
    if len(parts) != ndim or not all(part.isdecimal() and part.isascii() for part in parts):
        return None
    return tuple(map(int, parts))


def _writer_of_keys(node: NodeSnapshot) -> Any:
    name, separator = _encoding(node)
    if name == "v2":
        return lambda coords: separator.join(map(str, coords)) or "0"
    return lambda coords: separator.join(["c", *map(str, coords)])
