"""Our sessions with the methods of the reference's compiled ``PySession`` and ``PyStore``.

Long because the reference has all of these methods in two classes that share a store.
"""

from __future__ import annotations

import datetime
import pickle
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from helpers.peers import native
from helpers.peers.keys import ReadView, SessionKeys
from helpers.peers.store import view_of

from icechunk_format.encoding.manifest.chunk_refs import (
    KIND_INLINE,
    KIND_NATIVE,
    KIND_VIRTUAL,
)
from icechunk_format.errors import InvalidInputError, NotFoundError, ReadOnlyError
from icechunk_format.groups.changing import references
from icechunk_format.repository.changes.grid_checks import check_regular
from icechunk_format.repository.chunks.virtual_url import MalformedUrlError, parse_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from helpers.peers.repository import PyRepository

    from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs


class BasicConflictSolver:
    """A choice for chunks that both sides wrote."""

    def __init__(self, *, on_chunk_conflict: Any = None, **others: bool) -> None:
        selection = native.compiled().VersionSelection
        chosen = selection.UseOurs if on_chunk_conflict is None else on_chunk_conflict
        # The reference calls the session's side "ours", as we do.
        names = {str(selection.UseOurs): "ours", str(selection.UseTheirs): "theirs"}
        self.resolve = names.get(str(chosen))
        self.others = others


class ConflictDetector:
    """Resolves nothing."""

    resolve = None


@dataclass(repr=False)
class Diff:
    """Changes of a session, or between two snapshots."""

    new_groups: set[str] = field(default_factory=set)
    new_arrays: set[str] = field(default_factory=set)
    deleted_groups: set[str] = field(default_factory=set)
    deleted_arrays: set[str] = field(default_factory=set)
    updated_groups: set[str] = field(default_factory=set)
    updated_arrays: set[str] = field(default_factory=set)
    updated_chunks: dict[str, list[list[int]]] = field(default_factory=dict)
    moved_nodes: list[tuple[str, str]] = field(default_factory=list)

    def is_empty(self) -> bool:
        return not any(vars(self).values())

    def __repr__(self) -> str:
        titles = {
            "Groups created": self.new_groups,
            "Arrays created": self.new_arrays,
            "Group definitions updated": self.updated_groups,
            "Array definitions updated": self.updated_arrays,
            "Groups deleted": self.deleted_groups,
            "Arrays deleted": self.deleted_arrays,
        }
        parts = [
            f"{title}:\n" + "".join(f"    {path}\n" for path in sorted(paths)) + "\n"
            for title, paths in titles.items()
            if paths
        ]
        if self.updated_chunks:
            parts.append("Chunks updated:\n")
            for path, coords in self.updated_chunks.items():
                more = f"        ... {len(coords) - 10} more\n" if len(coords) > 10 else ""
                lines = "".join(f"        {at}\n" for at in coords[:10])
                parts.append(f"    {path}:\n{lines}{more}")
        if self.moved_nodes:
            lines = "".join(f"    {old} -> {new}\n" for old, new in self.moved_nodes)
            parts.append(f"Nodes moved/renamed:\n{lines}\n")
        return "".join(parts)


@native.as_reference
class PySession:
    def __init__(self, repository: PyRepository, session: Any, mode: str) -> None:
        self.repository = repository
        self._mode = mode
        self.ended = False
        self._use(session)

    def _use(self, session: Any) -> None:
        self.held = session
        self.keys = SessionKeys(session, self.repository.chunk_source())

    # Equality is that of objects, as for two sessions of the reference.

    def as_bytes(self) -> bytes:
        if not self.read_only:
            raise NotImplementedError("a session with changes stays in its process")
        return pickle.dumps((self.repository, str(self.held.snapshot_id)))

    @classmethod
    def from_bytes(cls, data: bytes) -> PySession:
        repository, snapshot = pickle.loads(data)
        return cls(repository, view_of(repository.repository, snapshot=snapshot), "readonly")

    def fork(self) -> PySession:
        """Return a session that only reads: executors that write return receipts."""
        if self.held.has_changes:
            raise InvalidInputError("a session with changes stays in its process")
        view = view_of(self.repository.repository, snapshot=self.snapshot_id)
        return PySession(self.repository, view, "readonly")

    def merge(self, other: PySession) -> None:
        raise NotImplementedError("forks: our executors return receipts of manifests")

    @property
    def is_fork(self) -> bool:
        return False

    @property
    def read_only(self) -> bool:
        return self.ended or isinstance(self.held, ReadView)

    @property
    def mode(self) -> Any:
        return getattr(native.compiled().SessionMode, "readonly" if self.read_only else self._mode)

    @property
    def snapshot_id(self) -> str:
        return str(self.held.snapshot_id)

    @property
    def branch(self) -> str | None:
        return None if self.read_only else self.held.branch

    @property
    def has_uncommitted_changes(self) -> bool:
        return bool(self.held.has_changes)

    @property
    def config(self) -> Any:
        return self.repository.config()

    @property
    def store(self) -> PyStore:
        return PyStore(self)

    # -- changes --------------------------------------------------------------------------------

    def _writable(self, mode: str = "writable") -> Any:
        if self.read_only:
            raise ReadOnlyError("cannot write to read-only store")
        if self._mode != mode:
            raise InvalidInputError(f"a {self._mode} session cannot do what a {mode} session does")
        return self.held

    def status(self) -> Diff:
        if self.read_only:
            return Diff()
        changes = self.held.changes
        found = Diff()
        for node in changes.created.values():
            (found.new_groups if node.array is None else found.new_arrays).add(node.path)
        for node in changes.deleted.values():
            (found.deleted_groups if node.array is None else found.deleted_arrays).add(node.path)
        for node in changes.updated.values():
            (found.updated_groups if node.array is None else found.updated_arrays).add(node.path)
        for node in self.held.nodes():
            touched = changes.chunks.get(node.id)
            if touched is not None and not touched.is_empty:
                pending, deleted = touched.pending()
                coords = [*pending.coords.tolist(), *deleted.tolist()]
                found.updated_chunks[node.path] = sorted(coords)
        for move in changes.moved.values():
            found.moved_nodes.append((str(move.from_path), str(move.to_path)))
        return found

    def discard_changes(self) -> None:
        if not self.read_only:
            self.held.discard()

    def move_node(self, from_path: str, to_path: str) -> None:
        self._writable("rearrange").move(from_path, to_path)

    def get_node_id(self, path: str) -> str:
        node = self.held.node(path)
        if node is None:
            raise NotFoundError(f"{path} not found", name=path)
        return str(node.id)

    def shift_array(self, array_path: str, chunk_offset: Sequence[int]) -> None:
        self._writable().shift(array_path, chunk_offset)

    def reindex_array(
        self,
        array_path: str,
        forward: Callable[[list[int]], Iterable[int] | None],
        backward: Callable[[list[int]], Iterable[int] | None] | None = None,
    ) -> None:
        session, refs = self._writable(), self._refs(array_path)
        check_regular(session.node(array_path))
        moved = {tuple(at): forward(at) for at in refs.coords.tolist()}
        counts = session.node(array_path).array.num_chunks
        targets = {at: tuple(int(n) for n in to) for at, to in moved.items() if to is not None}
        for to in targets.values():
            if len(to) != len(counts) or any(
                not 0 <= n < count for n, count in zip(to, counts, strict=True)
            ):
                raise InvalidInputError(f"{to} is outside of the chunk grid {counts}")
        gone = []
        if backward is not None:
            for at in refs.coords.tolist():
                source = backward(at)
                if source is None or tuple(source) not in moved:
                    gone.append(at)
        rows = [row for row, at in enumerate(refs.coords.tolist()) if tuple(at) in targets]
        chosen = refs.take(np.array(rows, dtype=np.int64))
        to = np.array([targets[tuple(at)] for at in chosen.coords.tolist()], dtype=np.int64)
        if gone:
            session.delete_chunks(array_path, gone)
        if len(chosen):
            session.set_refs(array_path, chosen.moved(to.reshape(len(chosen), len(counts))))

    # -- commits --------------------------------------------------------------------------------

    def commit(
        self,
        message: str,
        metadata: dict[str, Any] | None = None,
        rebase_with: Any = None,
        rebase_tries: int = 1_000,
        allow_empty: bool = False,
    ) -> str:
        session = self._open()
        result = session.commit(
            message,
            metadata=self._metadata(metadata),
            on_conflict="fail" if rebase_with is None else "rebase",
            resolve=None if rebase_with is None else rebase_with.resolve,
            rebase_tries=rebase_tries,
            # Moves there and back are no change for us.
            allow_empty=allow_empty or self._mode == "rearrange",
        )
        return self._end(result.snapshot_id)

    def amend(
        self, message: str, metadata: dict[str, Any] | None = None, allow_empty: bool = False
    ) -> str:
        session = self._open()
        given = {"metadata": self._metadata(metadata), "allow_empty": allow_empty}
        return self._end(session.amend(message, **given).snapshot_id)

    def flush(self, message: str, metadata: dict[str, Any] | None = None) -> str:
        session = self._open()
        return self._end(session.flush(message, metadata=self._metadata(metadata)))

    def rebase(self, solver: Any) -> None:
        self._open().rebase(resolve=solver.resolve)

    def _open(self) -> Any:
        if self.read_only:
            raise ReadOnlyError("cannot write to read-only store")
        return self.held

    def _metadata(self, metadata: dict[str, Any] | None) -> dict[str, Any] | None:
        return {**self.repository.default_metadata, **(metadata or {})} or None

    def _end(self, snapshot: Any) -> str:
        self.ended = True
        self._use(view_of(self.repository.repository, snapshot=str(snapshot)))
        return str(snapshot)

    # -- chunks ---------------------------------------------------------------------------------

    def _refs(self, array_path: str) -> ChunkRefs:
        path = "/" + array_path.strip("/")
        node = self.held.node(path)
        if node is None or node.array is None:
            raise NotFoundError(f"there is no array at {path!r}", name=path)
        counts = node.array.num_chunks
        return self.held.chunk_refs(path, [0] * len(counts), counts)

    def all_virtual_chunk_locations(self) -> list[str]:
        found = []
        for node in self.held.nodes():
            if node.array is not None:
                refs = self._refs(node.path)
                found += refs.locations(np.flatnonzero(refs.kind == KIND_VIRTUAL))
        return [self._absolute(location) for location in found]

    def _absolute(self, location: str) -> str:
        for one in self.keys.chunks.containers:
            if one.name is not None and location.startswith(f"vcc://{one.name}/"):
                return one.url_prefix + location.removeprefix(f"vcc://{one.name}/")
        return location

    @native.iterated
    def chunk_coordinates(self, array_path: str, batch_size: int) -> Iterator[list[list[int]]]:
        coords = self._refs(array_path).coords.tolist()
        for start in range(0, len(coords), batch_size):
            yield coords[start : start + batch_size]

    def chunk_type(self, array_path: str, coords: Sequence[int]) -> Any:
        kinds = native.compiled().ChunkType
        refs = self._refs(array_path)
        (row,) = refs.find(np.array([list(coords)]))
        if row < 0:
            return kinds.uninitialized
        names = {KIND_NATIVE: "native", KIND_INLINE: "inline", KIND_VIRTUAL: "virtual"}
        return getattr(kinds, names[int(refs.kind[row])])


def _rows_of(found: list[tuple[str, int, int, Any]]) -> pa.Table:
    """Return rows of the layout ``refs``."""
    locations, offsets, lengths, checksums = zip(*found, strict=True)
    times = [one if isinstance(one, datetime.datetime) else None for one in checksums]
    return pa.table(
        {
            "kind": pa.array(["virtual"] * len(found)),
            "location": pa.array(locations, pa.string()),
            "offset": pa.array(offsets, pa.int64()),
            "length": pa.array(lengths, pa.int64()),
            "etag": pa.array(
                [one if isinstance(one, str) else None for one in checksums], pa.string()
            ),
            "last_modified": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


def try_parse(location: str) -> None:
    """Raise InvalidInputError for a location that is no URL."""
    try:
        parse_url(location)
    except MalformedUrlError as error:
        raise InvalidInputError(f"error parsing {location!r}: {error}") from None


@native.as_reference
class PyStore:
    """The keys of a session."""

    supports_writes = True
    supports_deletes = True
    supports_listing = True
    supports_partial_writes = False
    supports_consolidated_metadata = False

    def __init__(self, session: PySession) -> None:
        self._session = session

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PyStore) and self._session is other._session

    __hash__ = None

    def as_bytes(self) -> bytes:
        return self._session.as_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> PyStore:
        return cls(PySession.from_bytes(data))

    @property
    def session(self) -> PySession:
        return self._session

    @property
    def read_only(self) -> bool:
        return self._session.read_only

    def _keys(self) -> SessionKeys:
        return self._session.keys

    def _writable(self) -> SessionKeys:
        self._session._writable()
        return self._session.keys

    async def is_empty(self, prefix: str) -> bool:
        base = prefix.rstrip("/")
        return next(self._keys().sizes(f"{base}/" if base else ""), None) is None

    async def clear(self) -> None:
        self._writable().clear()

    def sync_clear(self) -> None:
        self._writable().clear()

    async def get(self, key: str, byte_range: Any = None) -> bytes:
        found = self._keys().get(key, byte_range or (None, None))
        if found is None:
            raise KeyError(key)
        return found

    async def get_partial_values(self, key_ranges: Any) -> list[bytes]:
        return [await self.get(key, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        return self._keys().size(key) is not None

    async def set(self, key: str, value: Any) -> None:
        self._writable().set(key, bytes(value))

    async def set_if_not_exists(self, key: str, value: Any) -> None:
        if not await self.exists(key):
            await self.set(key, value)

    async def delete(self, key: str) -> None:
        self._writable().delete(key)

    async def delete_dir(self, prefix: str) -> None:
        self._writable().delete_dir(prefix)

    @native.iterated
    def list(self) -> Iterator[str]:
        for key, _ in self._keys().sizes():
            yield key

    @native.iterated
    def list_prefix(self, prefix: str) -> Iterator[str]:
        base = prefix.rstrip("/")
        for key, _ in self._keys().sizes(f"{base}/" if base else ""):
            yield key

    @native.iterated
    def list_dir(self, prefix: str) -> Iterator[str]:
        names = self._keys().list_dir(prefix)
        node = self._session.held.node("/" + prefix.strip("/"))
        # The reference lists the folder of the chunks of an array without chunks, too.
        chunks = ["c"] if node is not None and node.array is not None else []
        yield from dict.fromkeys([*names, *chunks])

    async def getsize(self, key: str) -> int:
        size = self._keys().size(key)
        if size is None:
            raise NotFoundError(f"key not found: {key}", name=key)
        return size

    async def getsize_prefix(self, prefix: str) -> int:
        base = prefix.rstrip("/")
        return sum(size for _, size in self._keys().sizes(f"{base}/" if base else ""))

    # -- virtual chunks -------------------------------------------------------------------------

    def set_virtual_ref(
        self,
        key: str,
        location: str,
        offset: int,
        length: int,
        checksum: Any,
        validate_container: bool,
    ) -> None:
        place = self._writable().place(key)
        if place is None or place.coords is None:
            raise InvalidInputError(f"{key!r} is not a chunk of an array", name=key)
        ok = self._set(
            place.path,
            [place.coords],
            [location],
            [offset],
            [length],
            [checksum],
            validate_container,
        )
        if ok is not None:
            raise InvalidInputError(f"{location} is in no virtual chunk container")

    def set_virtual_refs(
        self, array_path: str, chunks: list[Any], validate_containers: bool
    ) -> list[tuple[int, ...]] | None:
        return self._set(
            array_path,
            [tuple(one.index) for one in chunks],
            [one.location for one in chunks],
            [one.offset for one in chunks],
            [one.length for one in chunks],
            [one.etag_checksum or one.last_updated_at_checksum for one in chunks],
            validate_containers,
        )

    def set_virtual_refs_arr(
        self,
        array_path: str,
        chunk_grid_shape: list[int],
        locations: list[str],
        offsets: Any,
        lengths: Any,
        *,
        validate_containers: bool = True,
        arr_offset: list[int] | None = None,
        checksum: Any = None,
    ) -> list[tuple[int, ...]] | None:
        count = int(np.prod(chunk_grid_shape, dtype=np.int64))
        if not len(locations) == len(offsets) == len(lengths) == count:
            raise InvalidInputError(f"{count} locations, offsets and lengths are needed")
        at = np.indices(chunk_grid_shape).reshape(len(chunk_grid_shape), -1).T
        node = self._session.held.node("/" + array_path.strip("/"))
        if node is not None and node.array is not None and not node.array.shape:
            at = at[:, :0]  # a scalar, whose grid may be given with one dimension
        if arr_offset is not None:
            at = at + np.array(arr_offset)
        rows = [row for row, location in enumerate(locations) if location]
        return self._set(
            array_path,
            [tuple(at[row].tolist()) for row in rows],
            [locations[row] for row in rows],
            [int(offsets[row]) for row in rows],
            [int(lengths[row]) for row in rows],
            [checksum for _ in rows],
            validate_containers,
        )

    def _set(
        self,
        array_path: str,
        coords: list[tuple[int, ...]],
        locations: list[str],
        offsets: list[int],
        lengths: list[int],
        checksums: list[Any],
        validates: bool,
    ) -> list[tuple[int, ...]] | None:
        session = self._session._writable()
        path = "/" + array_path.strip("/")
        node = session.node(path)
        if node is None or node.array is None:
            raise NotFoundError(f"there is no array at {path!r}", name=path)
        kept = list(range(len(coords)))
        if validates:
            # As in the layout ``refs``, but the reference goes on with the others.
            for location in dict.fromkeys(locations):
                if not location.startswith("vcc://"):
                    try_parse(location)
            prefixes = tuple(self._prefixes())
            kept = [row for row in kept if locations[row].startswith(prefixes)]
        if kept:
            at = np.array([coords[row] for row in kept], dtype=np.int64)
            source = self._session.keys.chunks
            target = SimpleNamespace(
                name=path,
                metadata=SimpleNamespace(grid=SimpleNamespace(num_chunks=node.array.num_chunks)),
            )
            refs, _ = references(
                target,
                at.reshape(len(kept), len(node.array.num_chunks)),
                _rows_of([(locations[i], offsets[i], lengths[i], checksums[i]) for i in kept]),
                source if validates else replace(source, containers=()),
            )
            session.set_refs(path, refs)
        left_out = set(range(len(coords))) - set(kept)
        return [coords[row] for row in sorted(left_out)] or None

    def _prefixes(self) -> list[str]:
        containers = self._session.keys.chunks.containers
        named = [f"vcc://{one.name}/" for one in containers if one.name]
        return [*(one.url_prefix for one in containers), *named]

    @native.iterated
    def array_chunk_iterator(self, array_path: str, batch_size: int) -> Iterator[Any]:
        from icechunk_format.encoding.ids import encode_many

        refs = self._session._refs(array_path)
        numbers = {KIND_NATIVE: 1, KIND_VIRTUAL: 2, KIND_INLINE: 3}
        for start in range(0, len(refs), batch_size):
            part = refs.take(np.arange(start, min(start + batch_size, len(refs))))
            ids = encode_many(part.chunk_id)
            paths, inlined = [], {}
            for row, kind in enumerate(part.kind.tolist()):
                if kind == KIND_INLINE:
                    inlined[row] = part.inline(row)
                    paths.append("")
                else:
                    is_native = kind == KIND_NATIVE
                    location = "" if is_native else self._session._absolute(part.location(row))
                    paths.append(ids[row] if is_native else location)
            kind = np.array([numbers[one] for one in part.kind.tolist()], dtype=np.uint8)
            yield part.coords, kind, paths, part.offset, part.length, inlined
