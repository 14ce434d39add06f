"""The draft with numbered branch files: ``r/``, ``s/``, ``m/``, ``c/`` and records by schema.

Decisions where the draft is silent
-----------------------------------
1. **Names of objects.** Ids are 16 bytes; the draft does not say how they are spelled in a key.
   Crockford base 32 (26 characters), hexadecimal and UUID are tried, with no ending, ``.json``,
   ``.msgpack`` and ``.chunk``; what is found first in a folder is tried first from then on.
2. **Parents.** A snapshot lists ancestors in ``short_term_history`` in no stated order. Its parent
   is the one written last; of several of one time, the one that the branch file before names,
   else the first in the list. Where the list is empty though ``total_parents`` is not zero, the
   branch file before names the parent. A parent whose file is gone ends the history there.
3. **Keys of a manifest** are the number of the node and the chunk's coordinates, separated by
   anything that is no digit: ``3/0/1``, ``3.0.1``, ``(3, [0, 1])``.
4. **Extents** of manifests are not described further and are not needed: all manifests of an array
   are read. Of two references for one chunk, that of the manifest listed first counts.
5. ``null`` for a floating-point fill value is NaN, which JSON cannot say.
6. Attributes in files of their own ("not implemented" in the draft) are refused.

Specification: drafts, "numbered refs".
"""

from __future__ import annotations

import base64
import re
import uuid
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from icechunk_format.drafts.model import DraftNode, DraftRepository, DraftSnapshot
from icechunk_format.drafts.numbered_nodes import read_chunk_map, read_node
from icechunk_format.drafts.records import Record, decode_record, read_object
from icechunk_format.errors import NotFoundError
from icechunk_format.spec.object_keys import REPO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icechunk_format.drafts.model import DraftChunks
    from icechunk_format.storage.location import Location
    from icechunk_format.storage.protocol import Storage

REFS: Final = "r/"
SNAPSHOTS: Final = "s/"
MANIFESTS: Final = "m/"
CHUNKS: Final = "c/"
ID_SIZE: Final = 16

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_BRANCH_FILE: Final = re.compile(rf"r/([^/]+)/([{_ALPHABET}]{{8}})\.json")
_TAG_FILE: Final = re.compile(r"r/([^/]+)\.json")
_TO_CROCKFORD: Final = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", _ALPHABET.encode())
_FROM_CROCKFORD: Final = bytes.maketrans(_ALPHABET.encode(), b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
_ENDINGS: Final = ("", ".json", ".msgpack", ".chunk")
_SPELLINGS: Final = 3


def is_numbered(storage: Storage) -> bool:
    """Tell whether a storage holds branch files of this draft."""
    if storage.head(REPO) is not None:
        return False
    return any(_BRANCH_FILE.fullmatch(found.key) for found in storage.list(REFS))


def id_text(raw: bytes) -> str:
    """Return an id as Crockford base 32."""
    return base64.b32encode(raw).rstrip(b"=").translate(_TO_CROCKFORD).decode()


def _raw_id(text: str) -> bytes | None:
    """Return the bytes of an id; None for a text that is no id."""
    try:
        raw = base64.b32decode(text.encode("ascii").translate(_FROM_CROCKFORD) + b"======")
    except (UnicodeEncodeError, ValueError):
        return None
    return raw if id_text(raw) == text else None


def _spellings(raw: bytes) -> tuple[str, ...]:
    return id_text(raw), raw.hex(), str(uuid.UUID(bytes=raw))


class _Names(NamedTuple):
    """How ids are spelled in the keys of a folder."""

    spelling: int
    ending: str


class NumberedRepository(DraftRepository):
    """A repository of the draft with numbered branch files; see the head of this file."""

    kind = "numbered refs"

    def __init__(self, location: Location, storage: Storage) -> None:
        super().__init__(location, storage)
        self._names: dict[str, _Names] = {}
        self._files: tuple[dict[str, list[str]], dict[str, str]] | None = None
        self._before: dict[str, str] | None = None

    def branches(self) -> dict[str, str]:
        """Return every branch and the id of its newest version, sorted by name."""
        files = self._branch_files()
        return {name: self._target(self._ref(keys[0])) for name, keys in files.items()}

    def tags(self) -> dict[str, str]:
        """Return every tag and the id of its version, sorted by name."""
        return {name: self._target(self._ref(key)) for name, key in self._tag_files().items()}

    def properties(self) -> dict[str, Any]:
        """Return the properties of branches and tags that have any."""
        keys = {f"branch {name}": keys[0] for name, keys in self._branch_files().items()}
        keys |= {f"tag {name}": key for name, key in self._tag_files().items()}
        found = {name: self._ref(key).mapping("properties") for name, key in keys.items()}
        return {"ref_properties": {name: value for name, value in found.items() if value}}

    def snapshot(self, snapshot_id: str) -> DraftSnapshot:
        """Return one version."""
        record = self._record(snapshot_id)
        own = record.below("metadata")
        if self._target(own, "id") != snapshot_id:
            raise own.error(f"the file of {snapshot_id} says another id", "id")
        return DraftSnapshot(
            id=snapshot_id,
            parent_id=self._parent(snapshot_id, record),
            written_at=own.instant("written_at"),
            message=own.text("message"),
            properties=record.mapping("properties"),
        )

    def nodes(self, snapshot_id: str) -> list[DraftNode]:
        """Return the nodes of a version, sorted by path."""
        record = self._record(snapshot_id)
        nodes = record.below("nodes")
        found = [
            read_node(nodes.at(value, f"[{path}]"), path, self._manifest_key)
            for path, value in nodes.value.items()
        ]
        numbers = [node.id for node in found]
        if len(set(numbers)) != len(numbers):
            raise nodes.error("two nodes have the same id; ids are unique")
        return sorted(found, key=lambda node: node.path)

    def read_manifest(self, object_key: str, node: DraftNode) -> DraftChunks:
        """Return the references of one array in one manifest."""
        data = read_object(self.storage, object_key, "draft manifest")
        record = decode_record(data, object_key=object_key, file_type="draft manifest")
        return read_chunk_map(record, node, self._chunk_key)

    # -- refs -------------------------------------------------------------------------------

    def _branch_files(self) -> dict[str, list[str]]:
        """Return the keys of the files of each branch, the newest first."""
        return self._ref_files()[0]

    def _tag_files(self) -> dict[str, str]:
        return self._ref_files()[1]

    def _ref_files(self) -> tuple[dict[str, list[str]], dict[str, str]]:
        if self._files is None:
            branches: dict[str, list[str]] = {}
            tags: dict[str, str] = {}
            for found in self.storage.list(REFS):
                if branch := _BRANCH_FILE.fullmatch(found.key):
                    branches.setdefault(branch[1], []).append(found.key)
                elif tag := _TAG_FILE.fullmatch(found.key):
                    tags[tag[1]] = found.key
            # Names count down, so that the newest one comes first.
            self._files = (
                {name: sorted(branches[name]) for name in sorted(branches)},
                dict(sorted(tags.items())),
            )
        return self._files

    def _ref(self, object_key: str) -> Record:
        data = read_object(self.storage, object_key, "draft ref")
        record = decode_record(data, object_key=object_key, file_type="draft ref")
        record.instant("timestamp")
        return record

    def _target(self, record: Record, name: str = "snapshot") -> str:
        return id_text(record.raw_bytes(record.field(name), name, ID_SIZE))

    # -- snapshots --------------------------------------------------------------------------

    def _record(self, snapshot_id: str) -> Record:
        raw = _raw_id(snapshot_id)
        key = None if raw is None else self._find(SNAPSHOTS, raw)
        if key is None:
            raise NotFoundError(
                f"there is no snapshot {snapshot_id} in the draft at {self.location}",
                kind="snapshot",
                name=snapshot_id,
            )
        data = read_object(self.storage, key, "draft snapshot")
        return decode_record(data, object_key=key, file_type="draft snapshot")

    def _parent(self, snapshot_id: str, record: Record) -> str | None:
        record.integer("short_term_parents", 0, 2**16 - 1)
        total = record.integer("total_parents", 0, 2**32 - 1)
        ancestors = [
            (item.instant("written_at"), self._target(item, "id"))
            for item in record.records("short_term_history")
        ]
        candidates = [a for a in ancestors if a[1] != snapshot_id]
        parent: str | None
        if candidates:
            newest = max(time for time, _ in candidates)
            last = [found for time, found in candidates if time == newest]
            parent = last[0]
            if len(set(last)) > 1 and self._previous().get(snapshot_id) in last:
                parent = self._previous()[snapshot_id]
        else:
            parent = self._previous().get(snapshot_id) if total else None
        raw = None if parent is None else _raw_id(parent)
        if raw is None or self._find(SNAPSHOTS, raw) is None:
            return None
        return parent

    def _previous(self) -> dict[str, str]:
        """Return what the branch file before names, for each version that a branch file names."""
        if self._before is None:
            before: dict[str, str] = {}
            for keys in self._branch_files().values():
                line = [self._target(self._ref(key)) for key in reversed(keys)]
                for older, newer in pairwise(line):
                    if older != newer:
                        before.setdefault(newer, older)
            self._before = before
        return self._before

    # -- keys -------------------------------------------------------------------------------

    def _manifest_key(self, raw: bytes) -> str:
        return self._find(MANIFESTS, raw) or f"{MANIFESTS}{id_text(raw)}"

    def _chunk_key(self, raw: bytes) -> str:
        # Asking for each chunk would cost a request each: the first one tells how all are spelled.
        names = self._names.get(CHUNKS)
        if names is None:
            return self._find(CHUNKS, raw) or f"{CHUNKS}{id_text(raw)}"
        return f"{CHUNKS}{_spellings(raw)[names.spelling]}{names.ending}"

    def _find(self, folder: str, raw: bytes) -> str | None:
        """Return the key of the object with an id; None where there is none."""
        spellings = _spellings(raw)
        for names in self._tries(folder):
            key = f"{folder}{spellings[names.spelling]}{names.ending}"
            if self.storage.head(key) is not None:
                self._names[folder] = names
                return key
        return None

    def _tries(self, folder: str) -> Iterator[_Names]:
        known = self._names.get(folder)
        if known is not None:
            yield known
        for ending in _ENDINGS:
            for spelling in range(_SPELLINGS):
                names = _Names(spelling, ending)
                if names != known:
                    yield names
