"""Stages files, opens the lock file, and converts file status and system errors.

The rules are in the head of ``store.py``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

from icechunk_format.errors import StorageError, UnsupportedError
from icechunk_format.storage.protocol import ObjectInfo, ObjectVersion

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")

RESERVED: Final = ".storage-"
NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR)
_FOREIGN_STAGED: Final = re.compile(r"#\d+$")
# Names that NFS clients give to deleted files that are still open.
_DELETED_ON_NFS: Final = re.compile(r"\.nfs[0-9a-f]{8,}")
# Names that other implementations stage objects of a repository under.
_FOREIGN_STAGED_OBJECT: Final = re.compile(r"(?:[0-9A-Z]{20}|repo|ref\.json|config\.yaml)#\d+")
_STALE: Final = getattr(errno, "ESTALE", -1)
_NO_QUOTA: Final = getattr(errno, "EDQUOT", -2)
_TRIES_IF_STALE: Final = 5
# EBADF: NFS needs write access to lock a file.
_NO_LOCKS: Final = (
    errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF
)  # fmt: skip
_LOCK_NAME: Final = ".storage-lock"
_LOCK_FLAGS: Final = (
    getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
)
_HINTS: Final = {
    errno.EACCES: "check the permissions of the folder",
    errno.EPERM: "it belongs to another user; check the owner and the permissions of the folder",
    errno.ENOSPC: "free some space on the disk",
    _NO_QUOTA: "free some space, or raise the quota",
    _STALE: "it was replaced or unmounted on the server; check the mount, then try again",
    errno.EIO: "check the disk or the network mount",
    errno.EROFS: "the file system is mounted read-only",
    errno.EMFILE: "raise the limit of open files",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "there is a folder of that name",
    errno.ENAMETOOLONG: "the file system allows only shorter names",
}


def is_hidden(name: str) -> bool:
    """Return True if a file is a staged write, the lock or a deleted file, not an object."""
    if name.startswith("."):
        return name.startswith(RESERVED) or _DELETED_ON_NFS.fullmatch(name) is not None
    return _FOREIGN_STAGED.search(name) is not None


def info_of(key: str, status: os.stat_result) -> ObjectInfo:
    """Return the listing entry of a file."""
    return ObjectInfo(
        key=key, size=status.st_size, version=version_of(status), last_modified=modified(status)
    )


def modified(status: os.stat_result) -> datetime:
    """Return the modification time of a file."""
    return datetime.fromtimestamp(status.st_mtime, UTC)


def version_of(status: os.stat_result, content: bytes | None = None) -> ObjectVersion:
    """Return the version of a file, with a digest if its content is given."""
    return ObjectVersion(
        etag=f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}",
        generation=None if content is None else _digest(content),
    )


def _digest(content: bytes) -> str:
    # Processors have instructions for SHA-1, and collisions do no harm here.
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def is_at(path: str, expected: ObjectVersion) -> bool:
    """Return True if the file still has a version; call it under the lock."""
    try:
        with open(path, "rb") as file:
            return version_of(os.fstat(file.fileno()), file.read()).matches(expected)
    except FileNotFoundError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A file that is written, but not at its key yet."""

    path: str
    version: ObjectVersion

    def is_at(self, path: str) -> bool:
        """Return True if a path is this file: links and renames keep time, size and inode."""
        try:
            return version_of(os.lstat(path)).etag == self.version.etag
        except OSError:
            return False

    def replace(self, path: str, key: str, root: str, *, conditional: bool = False) -> None:
        """Rename the file to a path.

        A network file system may report a failure after the rename: its client repeats a request
        without an answer, and finds that there is nothing left to rename. The path shows it.

        Raises StorageError with ``outcome_unknown`` if the path does not show it, since the next
        writer may have replaced the file.
        """
        try:
            os.replace(self.path, path)
        except OSError as error:
            if self.is_at(path):
                return
            if not conditional or self.is_at(self.path):
                raise
            raise StorageError(
                f"cannot write object {key!r} below {root}: {reason_of(error)} while it was "
                "renamed; the write may have landed: read the object before writing again",
                outcome_unknown=True,
                key=key,
                reason=reason_of(error),
            ) from error


def keep_permissions(path: str, staged: str) -> None:
    """Give a staged file the permissions of the file that it replaces.

    Otherwise one writer with the umask 077 would lock all others out of a shared repository.
    """
    with contextlib.suppress(OSError):  # file systems without permissions
        permissions = stat.S_IMODE(os.stat(path).st_mode) & 0o777
        if stat.S_IMODE(os.stat(staged).st_mode) != permissions:
            os.chmod(staged, permissions)


@contextlib.contextmanager
def staging(path: str, data: bytes) -> Iterator[Staged]:
    """Write ``data`` to a staged file in the folder of ``path``; delete it on exit if it exists."""
    folder = os.path.dirname(path)
    staged = os.path.join(folder, f"{RESERVED}staged-{secrets.token_hex(8)}")
    # 0o666 and not mkstemp's 0o600: the user's umask decides who can read objects.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(staged, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(staged, flags, 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            version = version_of(os.fstat(file.fileno()), data)
        yield Staged(path=staged, version=version)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(staged)


def staged_below(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path and status of every staged file, also those of other implementations."""
    for folder, _, names in os.walk(root):
        for name in names:
            is_ours = name.startswith(f"{RESERVED}staged-")
            if is_ours or _FOREIGN_STAGED_OBJECT.fullmatch(name):
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):  # moved into place since
                    status = os.lstat(path)
                    if stat.S_ISREG(status.st_mode):
                        yield path, status


def open_lock(root: str, *, follow_symlinks: bool) -> int:
    """Open or create the lock file of a root, and return its descriptor.

    The file has the write permissions of the root's folder, for any umask.
    """
    path = os.path.join(root, _LOCK_NAME)
    flags = _LOCK_FLAGS & ~getattr(os, "O_NOFOLLOW", 0) if follow_symlinks else _LOCK_FLAGS
    try:
        descriptor = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        descriptor = _open_existing_lock(path, flags)
    else:
        with contextlib.suppress(OSError):  # file systems without permissions
            os.fchmod(descriptor, 0o666 & (os.stat(root).st_mode | 0o600))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StorageError(f"{path} is not a file that writers can lock; delete it", key=_LOCK_NAME)
    return descriptor


def _open_existing_lock(path: str, flags: int) -> int:
    try:
        try:
            return os.open(path, flags | os.O_RDWR)
        except PermissionError:
            # On a local disk, read access is enough to lock a file.
            return os.open(path, flags | os.O_RDONLY)
    except OSError as error:
        if os.path.islink(path):
            advice = "it is a symbolic link; delete it"
        else:
            advice = f"{reason_of(error)}; give every writer of the repository access to it"
        raise StorageError(
            f"cannot open {path}, which writers of the repository lock: {advice}",
            key=_LOCK_NAME,
            reason=reason_of(error),
        ) from error


@contextlib.contextmanager
def locked(root: str, *, follow_symlinks: bool) -> Iterator[None]:
    """Hold the lock of a root, which makes other processes wait."""
    if sys.platform == "win32":
        raise UnsupportedError(
            f"{root} is on Windows, where files cannot be replaced conditionally here; "
            "keep the repository on an object store or on Linux or macOS"
        )
    os.makedirs(root, exist_ok=True)
    descriptor = open_lock(root, follow_symlinks=follow_symlinks)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise UnsupportedError(
                f"cannot lock {os.path.join(root, _LOCK_NAME)}: {reason_of(error)}; without locks "
                "two writers could overwrite one another, and nothing was written. Mount the file "
                "system with locks (NFS: without 'nolock', Lustre: with 'flock'), or keep the "
                "repository on a local disk or an object store",
                key=_LOCK_NAME,
                reason=reason_of(error),
            ) from error
        yield
    finally:
        os.close(descriptor)  # releases the lock


def again_if_stale(read: Callable[[], T]) -> T:
    """Read a file, again if a network file system reports that it was replaced meanwhile."""
    for _ in range(_TRIES_IF_STALE - 1):
        try:
            return read()
        except StorageError as error:
            if getattr(error.__cause__, "errno", None) != _STALE:
                raise
    return read()


def ignores_case(folder: str) -> bool:
    """Return True if a file system does not distinguish an existing folder's name by case."""
    path = os.path.realpath(folder)
    while path.swapcase() == path and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    parent, name = os.path.split(path)
    try:
        return os.path.samefile(path, os.path.join(parent, name.swapcase()))
    except OSError:
        return False


def reason_of(error: OSError) -> str:
    """Return the operating system's message for an error."""
    return error.strerror or type(error).__name__


@contextlib.contextmanager
def as_storage_error(action: str, key: str, root: str) -> Iterator[None]:
    """Convert ``OSError`` to ``StorageError``; let ``FileNotFoundError`` propagate."""
    try:
        yield
    except OSError as error:
        if (error.errno in NOT_THERE and action != "write") or (
            error.errno == errno.ENAMETOOLONG and action == "look at"
        ):
            raise FileNotFoundError(key) from None
        raise storage_error(error, action, key, root) from error


def storage_error(error: OSError, action: str, key: str, root: str) -> StorageError:
    """Return the ``StorageError`` for an ``OSError``, with a hint."""
    hint = _HINTS.get(error.errno or 0, "check the folder and the file system")
    what = f"object {key!r} below {root}" if key else root
    return StorageError(
        f"cannot {action} {what}: {reason_of(error)}; {hint}",
        key=key,
        reason=reason_of(error),
    )
