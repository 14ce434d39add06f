"""Lists the files that a call names, and opens them for the parsers of VirtualiZarr.

Rules of this file
------------------
1. A file is identified by its URL in references: absolute, with special characters percent-encoded.
2. Files are opened like virtual chunks: with the same options, and only below authorized prefixes.
3. A parser reads through ``FileStore``, which caches blocks. Files of an archive are alike, so the
   blocks read for one file are prefetched together for the next: a parser of HDF5 reads blocks one
   after another, with a round trip for each.
"""

from __future__ import annotations

import fnmatch
import hashlib
import math
import os.path
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from icechunk_format.errors import InvalidInputError, NotFoundError, StorageError
from icechunk_format.groups import runs_of
from icechunk_format.repository.chunks import ChunkSource, VirtualResolver, shown
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import ObjectInfo, ReadRequest, Storage

BLOCK: Final = 2**20
_WILD: Final = re.compile(r"[*?\[]")
_STORES: Final = (".zarr", ".parq", ".parquet", ".icechunk")
_SAFE: Final = "/=+,~-_.:@"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file and its state; fields are None if not fetched."""

    url: str
    size: int | None = None
    etag: str | None = None
    modified: int | None = None
    """Last modification in seconds since 1970, rounded up: readers compare whole seconds."""

    def is_same(self, other: SourceFile) -> bool:
        """Return True if both have the same state."""
        if self.size != other.size:
            return False
        is_local = self.url.startswith("file:") and not is_folder(self.url)
        if self.etag is not None and other.etag is not None and not is_local:
            return self.etag == other.etag
        return self.modified == other.modified


class FileOpener:
    """Opens files by their URLs, as a source opens virtual chunks."""

    def __init__(self, source: ChunkSource) -> None:
        self._resolver = source.resolver()

    def find(self, url: str) -> tuple[Location, str]:
        """Return the location of the storage of a file, and the file's key."""
        found = self._resolver.resolve(url)
        return found.location, found.object_key

    def open(self, url: str) -> tuple[Storage, str]:
        """Open the storage of a file; return it with the file's key."""
        location, key = self.find(url)
        return open_storage(location), key


def with_state(file: SourceFile, storage: Storage, key: str) -> SourceFile:
    """Fetch the size, entity tag and time of a file; raise NotFoundError if it does not exist."""
    if is_folder(file.url):
        return _folder(file, storage.list(f"{key.rstrip('/')}/"))
    info = storage.head(key)
    if info is None:
        raise NotFoundError(f"file {shown(file.url)} does not exist", kind="file", url=file.url)
    return described(file.url, info)


def _folder(file: SourceFile, infos: Iterable[ObjectInfo]) -> SourceFile:
    """Return a folder, such as a Zarr store, with the combined state of its objects."""
    size = modified = digest = 0
    for info in infos:
        own = described(info.key, info)
        state = f"{info.key}\n{own.size}\n{own.etag or own.modified}".encode()
        # Summed, since the order of listings varies.
        digest += int.from_bytes(hashlib.blake2b(state, digest_size=16).digest())
        size, modified = size + info.size, max(modified, own.modified or 0)
    if not digest:
        raise NotFoundError(f"file {shown(file.url)} does not exist", kind="file", url=file.url)
    return replace(file, size=size, modified=modified, etag=f"{digest % 2**128:032x}")


class FileStore:
    """One file as an obspec store, the protocol through which VirtualiZarr's parsers read."""

    def __init__(self, storage: Storage, key: str, file: SourceFile) -> None:
        self._storage, self._key, self._file = storage, key, file
        self._blocks: dict[int, bytes] = {}
        self.touched: set[int] = set()
        """Numbers of the read blocks."""

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._file.size or 0

    def fetch(self, blocks: Iterable[int]) -> None:
        """Fetch blocks in parallel, adjacent blocks in one request; skip blocks beyond the end."""
        wanted = sorted({n for n in blocks if n * BLOCK < self.size} - self._blocks.keys())
        runs = runs_of(np.array(wanted, np.int64)).tolist()
        found = self._storage.get_many(
            [
                ReadRequest(key=self._key, start=first * BLOCK, end=min(end * BLOCK, self.size))
                for first, end in runs
            ]
        )
        for run, data in zip(runs, found, strict=True):
            for index, number in enumerate(range(*run)):
                self._blocks[number] = data[index * BLOCK : (index + 1) * BLOCK]

    def first_bytes(self) -> bytes:
        """Return the first block of the file."""
        self.fetch([0])
        return self._blocks.get(0, b"")

    def head(self, path: str) -> dict[str, Any]:
        """Return the metadata of the file."""
        return {"path": path, "size": self.size, "e_tag": self._file.etag, "version": None}

    def get(self, path: str, *, options: Any = None) -> _Answer:
        """Return the whole file."""
        return _Answer(self.get_range(path, start=0, end=self.size))

    def get_range(
        self, path: str, *, start: int, end: int | None = None, length: int | None = None
    ) -> bytes:
        """Return bytes of the file."""
        stop = start + (length or 0) if end is None else end
        if stop > self.size:
            raise StorageError(
                f"the file ends after {self.size:,} bytes, and bytes up to {stop:,} were requested"
            )
        blocks = range(start // BLOCK, -(-stop // BLOCK))
        self.touched.update(blocks)
        if all(number in self._blocks for number in blocks):
            data = b"".join(self._blocks[number] for number in blocks)
            first = blocks.start * BLOCK
            return data[start - first : stop - first]
        return self._storage.get(self._key, start=start, end=stop).data

    def get_ranges(
        self,
        path: str,
        *,
        starts: Sequence[int],
        ends: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> list[bytes]:
        """Return several ranges of the file."""
        if ends is None:
            ends = [a + n for a, n in zip(starts, lengths or (), strict=True)]
        return [
            self.get_range(path, start=int(a), end=int(b))
            for a, b in zip(starts, ends, strict=True)
        ]

    async def head_async(self, path: str) -> dict[str, Any]:
        """Return the metadata of the file."""
        return self.head(path)

    async def get_async(self, path: str, *, options: Any = None) -> _Answer:
        """Return the whole file."""
        return self.get(path)

    async def get_range_async(self, path: str, **range: Any) -> bytes:
        """Return bytes of the file."""
        return self.get_range(path, **range)

    async def get_ranges_async(self, path: str, **ranges: Any) -> list[bytes]:
        """Return several ranges of the file."""
        return self.get_ranges(path, **ranges)


class _Answer:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def buffer(self) -> bytes:
        return self._data

    bytes = buffer


def described(url: str, info: ObjectInfo) -> SourceFile:
    """Return a file with its state from a listing."""
    modified = math.ceil(info.last_modified.timestamp())
    return SourceFile(url=url, size=info.size, etag=info.version.etag, modified=modified)


def is_folder(url: str) -> bool:
    """Return True if a URL is that of a folder that is read as one file, such as a Zarr store."""
    return url.rstrip("/").endswith(_STORES)


def url_of(string: str) -> str:
    """Convert a path or a URL to the URL of a file."""
    if "://" not in string:
        string = os.path.abspath(os.path.expanduser(string))
        return "file://" + quote(string, safe=_SAFE)
    scheme, _, rest = string.partition("://")
    return f"{scheme.lower()}://" + quote(rest, safe=_SAFE + "%")


def list_files(names: Iterable[str], options: Mapping[str, str]) -> list[SourceFile]:
    """List files without repeats, in the order of the names.

    Names are paths, URLs, folders that end with ``/``, and patterns with ``*``, ``?``, ``[...]``
    and ``**``. Raises InvalidInputError if a pattern or folder matches no file.
    """
    found: dict[str, SourceFile] = {}
    for given in names:
        is_whole = given.endswith("/") or _is_local_folder(given)
        name = given.rstrip("/") + "/*" if is_whole else given
        if not _WILD.search(name):
            url = url_of(name)
            found.setdefault(url, SourceFile(url=url))
            continue
        matching = _matching(name, options)
        found |= {file.url: file for file in matching}
        if not matching:
            raise InvalidInputError(
                f"files: {shown(given)!r} does not match a file; check the folder and the "
                "pattern, as in 's3://bucket/archive/**/*.nc'",
                option="files",
            )
    if not found:
        raise InvalidInputError(
            "files: the list is empty; give a pattern such as 's3://bucket/archive/*.nc', a list, "
            "or a DataFrame with a column of URLs",
            option="files",
        )
    return list(found.values())


def _is_local_folder(string: str) -> bool:
    if _WILD.search(string) or is_folder(string):
        return False
    path = string.removeprefix("file://")
    return "://" not in path and os.path.isdir(os.path.expanduser(path))


def _matching(pattern: str, options: Mapping[str, str]) -> list[SourceFile]:
    if "://" not in pattern:
        pattern = "file://" + os.path.abspath(os.path.expanduser(pattern))
    head = pattern[: _WILD.search(pattern).start()].rpartition("/")[0] + "/"  # type: ignore[union-attr]
    root_url = url_of(head) if not head.startswith("file://") else url_of(head[7:]) + "/"
    prefix_url = root_url if root_url.startswith("file://") else _bucket(root_url)
    # A placeholder name, to resolve a key below the folder.
    inside = VirtualResolver((), (prefix_url,), options).resolve(root_url.rstrip("/") + "/x")
    prefix = inside.object_key[:-1]
    wanted = re.compile(_expression(pattern[len(head) :]))
    depth = None if "**" in pattern else pattern[len(head) :].count("/") + 1
    found: dict[str, SourceFile] = {}
    for info in open_storage(inside.location).list(prefix):
        name = info.key[len(prefix) :]
        parts = name.split("/")
        if any(part.startswith(".") for part in parts[:-1]) or parts[-1].startswith(".z"):
            continue
        if depth is not None and len(parts) > depth:
            folder = "/".join(parts[:depth])
            if is_folder(folder) and wanted.fullmatch(folder):
                url = root_url + quote(folder, safe=_SAFE)
                found.setdefault(url, SourceFile(url=url))
        elif wanted.fullmatch(name) and not parts[-1].startswith("."):
            url = root_url + quote(name, safe=_SAFE)
            found[url] = described(url, info)
    return [found[url] for url in sorted(found)]


def _bucket(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}/"


def _expression(pattern: str) -> str:
    parts = []
    for part in pattern.split("/"):
        if part == "**":
            parts.append("(?:[^/]+/)*")
            continue
        body = fnmatch.translate(part).replace("(?s:", "(?:").replace(".*", "[^/]*")
        parts.append(body.removesuffix(r"\Z").removesuffix(r"\z") + "/")
    return "".join(parts).removesuffix("/")
