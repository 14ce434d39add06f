"""Stores objects as files below one folder; writes are atomic, also between processes.

Rules of this file
------------------
1. A write is staged in the folder of its key under a reserved name and renamed, so readers never
   see a partial object. Files are not synced: a crash of the machine (not of the process) may lose
   the last writes.
2. ``CreateOnly`` creates a hard link, which fails if the name exists. ``ReplaceIfUnchanged``
   compares and replaces under an exclusive lock on one reserved file of the root. Other Icechunk
   implementations replace files without this lock, which does not stop them. Every user with write
   access to the root can take the lock.
3. A version is the file's modification time, size and inode, and a digest of the content if it
   was read or written: the three can repeat within one tick of the file system's clock.
4. Reserved names begin with ``.storage-``: they are never listed, and are refused as keys. Names
   such as ``name#3``, which other implementations stage under, are not listed either.
   ``delete_staged`` deletes the staged files of killed writers.
5. Links that lead out of the root are followed only with the option ``follow_symlinks``: a
   repository is untrusted.
"""

# ruff: noqa: D102 - the verbs are described once, in protocol.py

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from icechunk_format.errors import InvalidInputError, StorageError
from icechunk_format.storage.batches import batches
from icechunk_format.storage.concurrency import PacedThreads
from icechunk_format.storage.local.files import (
    NOT_THERE,
    RESERVED,
    Staged,
    again_if_stale,
    as_storage_error,
    ignores_case,
    info_of,
    is_at,
    is_hidden,
    keep_permissions,
    locked,
    modified,
    reason_of,
    staged_below,
    staging,
    storage_error,
    version_of,
)
from icechunk_format.storage.measures import count
from icechunk_format.storage.protocol import (
    Condition,
    CreateOnly,
    DeleteFailure,
    Fetched,
    ObjectInfo,
    ObjectVersion,
    ReadRequest,
    ReplaceIfUnchanged,
    Storage,
    check_key,
    missing_object,
    overwritten,
    split_prefix,
)
from icechunk_format.storage.ranges import check_length, check_unchanged, plan_local_reads

T = TypeVar("T")
A = TypeVar("A")

_NO_HARD_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
# Opening a named pipe would wait for a writer.
_READ_FLAGS: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
_THREADS: Final = 8
# Threads are faster on cold disks and network mounts, but not for a handful of files.
_FILES_FOR_THREADS: Final = 16


class LocalStorage(Storage):
    """Objects below a folder, which the first write creates.

    Parameters
    ----------
    follow_symlinks
        True to follow links that lead out of the folder.
    """

    def __init__(self, root: str, *, follow_symlinks: bool = False) -> None:
        self._root = os.path.abspath(root)
        self._follow_symlinks = follow_symlinks
        self._threads = PacedThreads(_THREADS)
        self._trusted_folders: set[str] = set()

    def __reduce__(self) -> tuple[object, ...]:
        return (
            functools.partial(LocalStorage, follow_symlinks=self._follow_symlinks),
            (self._root,),
        )

    @property
    def root_url(self) -> str:
        return self._root

    @property
    def lost_race_is_certain(self) -> bool:
        # ``put`` compares before it replaces anything. Links may be repeated by a file system.
        return True

    @functools.cached_property
    def ignores_case(self) -> bool:
        """True if the file system finds files by names that differ in case."""
        return ignores_case(self._root)

    # Reading

    def get(self, key: str, *, start: int | None = None, end: int | None = None) -> Fetched:
        read = ReadRequest(key=key, start=start, end=end)
        whole = start is None and end is None

        def fetch() -> Fetched:
            with self._opened(key) as descriptor:
                status = os.fstat(descriptor)
                data = self._read_range(descriptor, read, status.st_size)
            return Fetched(
                data=data,
                version=version_of(status, data if whole else None),
                last_modified=modified(status),
            )

        return again_if_stale(fetch)

    def get_many(self, requests: Sequence[ReadRequest]) -> list[bytes]:
        plan = plan_local_reads(requests)
        by_key: dict[str, list[int]] = {}
        for index, read in enumerate(plan.reads):
            by_key.setdefault(read.key, []).append(index)
        responses: list[bytes] = [b""] * len(plan.reads)

        def read_file(key: str, indices: list[int]) -> None:
            with self._opened(key) as descriptor:
                status = os.fstat(descriptor)
                etag = version_of(status).etag
                for index in indices:
                    read = plan.reads[index]
                    check_unchanged(read, etag=etag, modified_at=status.st_mtime)
                    responses[index] = self._read_range(descriptor, read, status.st_size)

        def read_files(files: list[tuple[str, list[int]]]) -> None:
            for key, indices in files:
                again_if_stale(functools.partial(read_file, key, indices))

        self._shared_out(read_files, list(by_key.items()))
        return plan.assemble(responses)

    def _read_range(self, descriptor: int, read: ReadRequest, size: int) -> bytes:
        # Lengths come from stored references, so they are compared with the size before allocating.
        if read.suffix is not None:
            first, last = max(size - read.suffix, 0), size
        else:
            first = min(read.start or 0, size)
            last = size if read.end is None else min(read.end, size)
        check_length(read, last - first, self._root)
        parts: list[bytes] = []
        try:
            # Seeking is safe, since each read has its own descriptor. Windows has no pread.
            os.lseek(descriptor, first, os.SEEK_SET)
            while first < last:
                part = os.read(descriptor, last - first)
                if not part:
                    break
                parts.append(part)
                first += len(part)
        except OSError as error:
            raise storage_error(error, "read", read.key, self._root) from error
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        check_length(read, len(data), self._root)
        count(1, read=len(data))
        return data

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        path = self._readable_path(key)
        try:
            descriptor = os.open(path, _READ_FLAGS)
        except OSError as error:
            if error.errno in (*NOT_THERE, errno.ENAMETOOLONG):
                raise missing_object(key, self._root) from None
            raise storage_error(error, "open", key, self._root) from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise missing_object(key, self._root)
            yield descriptor
        finally:
            os.close(descriptor)

    def head(self, key: str) -> ObjectInfo | None:
        path = self._readable_path(key)
        count(1)
        try:
            with as_storage_error("look at", key, self._root):
                status = os.stat(path)
        except FileNotFoundError:
            return None
        return info_of(key, status) if stat.S_ISREG(status.st_mode) else None

    # Writing

    def put(self, key: str, data: bytes, *, condition: Condition = None) -> ObjectVersion | None:
        path = self._writable_path(key)
        with as_storage_error("write", key, self._root), staging(path, data) as staged:
            match condition:
                case CreateOnly():
                    if not self._create(staged, path, key):
                        return None
                case ReplaceIfUnchanged(version=expected):
                    with self._locked():
                        if not is_at(path, expected):
                            return None
                        keep_permissions(path, staged.path)
                        staged.replace(path, key, self._root, conditional=True)
                case _:
                    staged.replace(path, key, self._root)
        count(1, written=len(data))
        return staged.version

    def _create(self, staged: Staged, path: str, key: str) -> bool:
        try:
            os.link(staged.path, path)
        except OSError as error:
            # A network file system may repeat a link and report that the name exists.
            if staged.is_at(path):
                return True
            if isinstance(error, FileExistsError):
                return False
            if error.errno not in _NO_HARD_LINKS:
                raise
            with self._locked():
                if os.path.lexists(path):
                    return False
                staged.replace(path, key, self._root, conditional=True)
        return True

    def put_many(self, items: Iterable[tuple[str, bytes]]) -> list[ObjectVersion]:
        return self._threads.map(lambda item: overwritten(self, *item), items)

    def delete_many(self, keys: Iterable[str]) -> list[DeleteFailure]:
        failures = self._shared_out(self._delete, list(keys))
        return [failure for some in failures for failure in some]

    def _shared_out(self, work: Callable[[list[A]], T], items: list[A]) -> list[T]:
        """Call a function on batches of items in threads, or once if there are few items."""
        if len(items) < _FILES_FOR_THREADS:
            return [work(items)]
        return self._threads.map(work, batches(items, -(-len(items) // (4 * _THREADS))))

    def _delete(self, keys: list[str]) -> list[DeleteFailure]:
        failures: list[DeleteFailure] = []
        count(len(keys))
        for key in keys:
            path = self._writable_path(key)
            try:
                os.unlink(path)
            except OSError as error:
                if error.errno not in NOT_THERE and not os.path.isdir(path):
                    failures.append(DeleteFailure(key=key, reason=reason_of(error)))
        return failures

    def delete_staged(
        self, older_than: datetime, *, dry_run: bool = False
    ) -> tuple[list[int], list[DeleteFailure]]:
        sizes: list[int] = []
        failures: list[DeleteFailure] = []
        for path, status in staged_below(self._root):
            if modified(status) >= older_than:
                continue
            try:
                if not dry_run:
                    os.unlink(path)
                sizes.append(status.st_size)
            except FileNotFoundError:
                continue
            except OSError as error:
                key = os.path.relpath(path, self._root)
                failures.append(DeleteFailure(key=key, reason=reason_of(error)))
        return sizes, failures

    def copy(
        self, source: str, target: str, *, source_version: ObjectVersion | None = None
    ) -> ObjectVersion | None:
        self._writable_path(target)
        return super().copy(source, target, source_version=source_version)

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return locked(self._root, follow_symlinks=self._follow_symlinks)

    # Paths

    def _path(self, key: str) -> str:
        check_key(key)
        if RESERVED in key and any(part.startswith(RESERVED) for part in key.split("/")):
            raise InvalidInputError(
                f"{key!r} cannot be an object key: names that begin with {RESERVED!r} are "
                "reserved for staged writes and locks",
                key=key,
            )
        return os.path.join(self._root, *key.split("/"))

    def _readable_path(self, key: str) -> str:
        path = self._writable_path(key)
        if not self._follow_symlinks and os.path.islink(path):
            self._refuse_outside(path, key)
        return path

    def _writable_path(self, key: str) -> str:
        path = self._path(key)
        folder = os.path.dirname(path)
        if not self._follow_symlinks and folder not in self._trusted_folders:
            self._refuse_outside(folder, key)
            # Folders that do not exist yet are not remembered: they may become links later.
            if os.path.isdir(folder):
                self._trusted_folders.add(folder)
        return path

    def _refuse_outside(self, path: str, key: str) -> None:
        root = os.path.realpath(self._root)
        if path != self._root and not Path(os.path.realpath(path)).is_relative_to(root):
            raise StorageError(
                f"object {key!r} below {self._root} is behind a symbolic link that leads out of "
                "the root; set storage.follow_symlinks=true if you trust it",
                key=key,
                option="storage.follow_symlinks",
            )

    # Listing; last, because inside the class the name hides the type.

    def folders(self) -> Iterator[str]:
        count(1)
        try:
            with (
                as_storage_error("list", "", self._root),
                os.scandir(self._root) as entries,
            ):
                for entry in entries:
                    is_folder = entry.is_dir(follow_symlinks=self._follow_symlinks)
                    if is_folder and not is_hidden(entry.name):
                        yield entry.name
        except FileNotFoundError:
            return

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        folder, start = split_prefix(prefix)
        if folder:
            self._readable_path(folder)
        return self._walk(folder, start)

    def _walk(self, folder: str, start: str) -> Iterator[ObjectInfo]:
        base = f"{folder}/" if folder else ""
        count(1)
        try:
            with as_storage_error("list", folder, self._root):
                entries = os.scandir(os.path.join(self._root, *folder.split("/")))
        except FileNotFoundError:
            return
        folders: list[str] = []
        with entries, as_storage_error("list", folder, self._root):
            for entry in entries:
                if not entry.name.startswith(start) or is_hidden(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=self._follow_symlinks):
                    folders.append(base + entry.name)
                    continue
                with contextlib.suppress(FileNotFoundError):  # deleted while we list
                    status = entry.stat(follow_symlinks=self._follow_symlinks)
                    if stat.S_ISREG(status.st_mode):
                        yield info_of(base + entry.name, status)
        for inner in folders:
            yield from self._walk(inner, "")
