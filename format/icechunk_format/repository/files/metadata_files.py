"""Fetches and decodes snapshots, manifests and transaction logs, each once per process.

Tasks of a scan need the same few manifests, so a cache per process keeps decoded files for all
threads.

Rules of this file
------------------
1. The cache is bounded in bytes, not in entries, since a manifest has a hundred bytes or a
   gigabyte.
2. If two threads need the same file, one fetches it and the other waits.
3. Only files that never change are kept. Snapshots of spec version 1 are read each time, since
   expiration overwrites them in place, and so is the initial snapshot, whose id is the same in a
   repository that was deleted and created again.
4. The id in a file must match its key, or one object was copied over another.
5. Files are cached by location and options: two servers may have different files under one URL, and
   another caller's credentials may not allow access.
6. A forked process starts with an empty cache, since a lock held by another thread of the parent
   would never be released.

Specification: "Snapshots", "Chunk manifest files", "Transaction logs".
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from icechunk_format.encoding import transaction_log as transaction_log_file
from icechunk_format.encoding.envelope import DEFAULT_LEVEL, SPEC_V1
from icechunk_format.encoding.ids import INITIAL_SNAPSHOT_ID, ManifestId, SnapshotId
from icechunk_format.encoding.manifest import decode as manifest_file
from icechunk_format.encoding.manifest.decode import Manifest
from icechunk_format.encoding.object_keys import manifest_key, snapshot_key, transaction_log_key
from icechunk_format.encoding.snapshot import file as snapshot_file
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.encoding.transaction_log import NODE_LISTS, EncodedLog, TransactionLog
from icechunk_format.errors import FormatError, InvalidInputError, NotFoundError
from icechunk_format.repository.files.optional_objects import missing_key
from icechunk_format.storage.concurrency import PerProcess, wait_for
from icechunk_format.storage.measures import count
from icechunk_format.storage.protocol import ReadRequest, Storage

CACHE_BYTES_VARIABLE = "ICECHUNK_SPARK_METADATA_CACHE_BYTES"
DEFAULT_CACHE_BYTES = 256 * 1024 * 1024

# Bytes of one Python object of each kind without its arrays, measured to within a factor of two.
_NODE_COST = 1_000
_NODE_ID_COST = 120
_FILE_COST = 1_000

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Loaded(Generic[V]):
    """A loaded value and its cost in bytes; None if it must not be cached."""

    value: V
    cost: int | None


class ObjectCache:
    """Cache of values within a budget of bytes, each loaded by one thread only.

    The least recently used values are dropped first. A value larger than the budget is not kept,
    but found as long as a caller has it: sessions share a snapshot of a million nodes.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used = 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Loaded[Any]] = OrderedDict()
        self._held: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._loading: dict[Hashable, Future[Any]] = {}

    @property
    def used_bytes(self) -> int:
        """Estimated bytes of all kept values."""
        return self._used

    def clear(self) -> None:
        """Drop all values; loads in progress finish and are kept."""
        with self._lock:
            self._kept.clear()
            self._held.clear()
            self._used = 0

    def get_many(
        self, keys: Sequence[Hashable], load: Callable[[list[int]], list[Loaded[V]]]
    ) -> list[V]:
        """Return the values of ``keys``; those that are not kept are loaded together.

        Parameters
        ----------
        keys
            One hashable for each value; repeated keys are loaded once.
        load
            Called outside the lock with the positions (in ``keys``) of the values to load; returns
            them in that order. Its exceptions propagate to the caller.
        """
        values: dict[Hashable, V] = {}
        hits = 0
        while len(values) < len(set(keys)):
            mine: dict[Hashable, Future[Any]] = {}
            theirs: dict[Hashable, Future[Any]] = {}
            positions: list[int] = []
            with self._lock:
                for position, key in enumerate(keys):
                    if key in values or key in mine or key in theirs:
                        continue
                    if (kept := self._kept.get(key)) is not None:
                        self._kept.move_to_end(key)
                        values[key] = kept.value
                        hits += 1
                    elif (held := self._held.get(key)) is not None:
                        values[key] = held
                        hits += 1
                    elif (under_way := self._loading.get(key)) is not None:
                        theirs[key] = under_way
                    else:
                        self._loading[key] = mine[key] = Future()
                        positions.append(position)
            # This thread's loads are done first, so that two threads never deadlock.
            if positions:
                values.update(self._load_own(keys, positions, mine, load))
            for key, under_way in theirs.items():
                # A failed load of another thread is repeated here, since a cancelled task or a
                # timeout concerns that thread only.
                wait_for(under_way)
                if under_way.exception() is None:
                    values[key] = under_way.result()
        count(hits=hits)
        return [values[key] for key in keys]

    def _load_own(
        self,
        keys: Sequence[Hashable],
        positions: list[int],
        mine: dict[Hashable, Future[Any]],
        load: Callable[[list[int]], list[Loaded[V]]],
    ) -> dict[Hashable, V]:
        try:
            loaded = dict(zip((keys[p] for p in positions), load(positions), strict=True))
        except BaseException as error:
            with self._lock:
                for key in mine:
                    del self._loading[key]
            for future in mine.values():
                future.set_exception(error)
            raise
        for key, item in loaded.items():
            self.keep(key, item)
        with self._lock:
            for key in mine:
                del self._loading[key]
        for key, future in mine.items():
            future.set_result(loaded[key].value)
        return {key: item.value for key, item in loaded.items()}

    def keep(self, key: Hashable, item: Loaded[Any]) -> None:
        """Keep a value if that is allowed and fits the budget."""
        if item.cost is None:
            return
        with self._lock:
            if item.cost > self._max_bytes:
                with suppress(TypeError):  # a tuple, for example, has no weak references
                    self._held[key] = item.value
            elif key not in self._kept:
                self._kept[key] = item
                self._used += item.cost
            while self._used > self._max_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._used -= dropped.cost or 0


def _configured_cache_bytes() -> int:
    string = os.environ.get(CACHE_BYTES_VARIABLE)
    if string is None:
        return DEFAULT_CACHE_BYTES
    try:
        max_bytes = int(string)
    except ValueError:
        max_bytes = -1
    if max_bytes < 0:
        raise InvalidInputError(
            f"the environment variable {CACHE_BYTES_VARIABLE} is {string!r}; it must be a whole "
            f"number of bytes, 0 or more (default {DEFAULT_CACHE_BYTES})",
            found=string,
        )
    return max_bytes


_PROCESS_CACHE: Final = PerProcess(lambda: ObjectCache(_configured_cache_bytes()))


def metadata_cache() -> ObjectCache:
    """Return the cache of decoded metadata files of this process."""
    return _PROCESS_CACHE.get()


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of metadata file; ``cost`` returns the bytes of one in memory, or None."""

    name: str
    key: Callable[[Any], str]
    decode: Callable[..., Any]
    cost: Callable[[Any], int | None]


def _load(storage: Storage, files: Sequence[tuple[_Kind, object]]) -> list[Any]:
    """Return files by kind and id; those that are not kept are fetched together."""
    object_keys = [kind.key(file_id) for kind, file_id in files]

    def load(positions: list[int]) -> list[Loaded[Any]]:
        wanted = {object_keys[p]: files[p] for p in positions}
        try:
            contents = storage.get_many([ReadRequest(key=key) for key in wanted])
        except NotFoundError as error:
            missing = missing_key(error)
            file_type = wanted[missing][0].name
            raise NotFoundError(
                f"the {file_type} {missing!r} is not in {storage.root_url}; it was never written, "
                "or garbage collection removed it after its snapshot expired",
                kind="object",
                key=missing,
                file_type=file_type,
                root_url=storage.root_url,
            ) from error
        loaded = []
        for (object_key, (kind, file_id)), data in zip(wanted.items(), contents, strict=True):
            found = kind.decode(data, object_key=object_key)
            check_id(found.id, file_id, object_key, kind.name)
            loaded.append(Loaded(found, kind.cost(found)))
        return loaded

    return metadata_cache().get_many([(storage.cache_scope, key) for key in object_keys], load)


def check_id(found: object, wanted: object, key: str, file_type: str) -> None:
    """Raise FormatError if the id in a file does not match its key."""
    if found != wanted:
        raise FormatError(
            f"the file holds the id {found}, its key {wanted}; another file was copied over it",
            object_key=key,
            file_type=file_type,
            field="id",
        )


def load_snapshot(storage: Storage, snapshot_id: SnapshotId) -> Snapshot:
    """Fetch and decode a snapshot file; NotFoundError if it does not exist."""
    [snapshot] = _load(storage, [(_SNAPSHOT, snapshot_id)])
    return snapshot  # type: ignore[no-any-return]


def remember_snapshot(storage: Storage, snapshot: Snapshot) -> None:
    """Cache a snapshot that was just stored, so that the next load need not decode it."""
    # Version 2 does not store the parent, so a snapshot read from its file has none.
    as_read = Loaded(replace(snapshot, parent_id=None), _snapshot_cost(snapshot))
    metadata_cache().keep((storage.cache_scope, snapshot_key(snapshot.id)), as_read)


def snapshot_objects(
    snapshot: Snapshot, log: TransactionLog | EncodedLog, *, level: int = DEFAULT_LEVEL
) -> list[tuple[str, bytes]]:
    """Return key and bytes of a snapshot and of its transaction log, to be stored together."""
    if isinstance(log, TransactionLog):
        log = EncodedLog(log, spec_version=snapshot.spec_version)
    return [
        (snapshot_key(snapshot.id), snapshot_file.encode(snapshot, level=level)),
        (transaction_log_key(snapshot.id), log.file(level=level)),
    ]


def load_manifests(storage: Storage, manifest_ids: Sequence[ManifestId]) -> list[Manifest]:
    """Fetch and decode several manifest files, in the order of ``manifest_ids``."""
    return _load(storage, [(_MANIFEST, manifest_id) for manifest_id in manifest_ids])


def load_transaction_log(storage: Storage, snapshot_id: SnapshotId) -> TransactionLog:
    """Fetch and decode the transaction log of a snapshot.

    Raises
    ------
    NotFoundError
        The log does not exist, as for the root snapshot of spec version 1.
    FormatError
        The file is damaged or belongs to another id.
    """
    [log] = _load(storage, [(_LOG, snapshot_id)])
    return log  # type: ignore[no-any-return]


def load_logs_and_tip(
    storage: Storage, log_ids: Sequence[SnapshotId], tip: SnapshotId
) -> tuple[list[TransactionLog], Snapshot]:
    """Fetch the logs of some snapshots and the newest snapshot, all concurrently.

    After a lost race, a writer needs both before it can retry.
    """
    *logs, snapshot = _load(storage, [*((_LOG, log_id) for log_id in log_ids), (_SNAPSHOT, tip)])
    return logs, snapshot


def _snapshot_cost(snapshot: Snapshot) -> int | None:
    if snapshot.spec_version == SPEC_V1 or snapshot.id == INITIAL_SNAPSHOT_ID:
        return None
    files = snapshot.manifest_files
    listed = files.ids.nbytes + files.size_bytes.nbytes + files.num_chunk_refs.nbytes
    return _FILE_COST + snapshot.nodes.columns.nbytes + listed


def _log_cost(log: TransactionLog) -> int | None:
    if log.id == INITIAL_SNAPSHOT_ID:
        return None
    ids = sum(len(getattr(log, name)) for name in NODE_LISTS) + len(log.updated_chunks)
    coords = sum(chunks.nbytes for chunks in log.updated_chunks.values())
    return _FILE_COST + ids * _NODE_ID_COST + coords + len(log.moved_nodes) * _NODE_COST


def _manifest_cost(manifest: Manifest) -> int:
    return _FILE_COST + manifest.nbytes


_SNAPSHOT: Final = _Kind("snapshot", snapshot_key, snapshot_file.decode, _snapshot_cost)
_MANIFEST: Final = _Kind("manifest", manifest_key, manifest_file.decode, _manifest_cost)
_LOG: Final = _Kind("transaction log", transaction_log_key, transaction_log_file.decode, _log_cost)
