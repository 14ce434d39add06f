"""Branches, tags and ancestry: one view over the two ways in which they are stored.

======================  ===============================  ====================================
fact                    spec version 2                   spec version 1
======================  ===============================  ====================================
branches, tags          in the one ``repo`` object       one ``refs/.../ref.json`` each
deleted tags            a list in ``repo``               empty ``ref.json.deleted`` objects
a snapshot exists       listed in ``repo``               its file exists
parent of a snapshot    an index in ``repo``             written in the snapshot file
======================  ===============================  ====================================

Rules of this file
------------------
1. In version 2 a snapshot that ``repo`` does not list does not exist, even if its file does.
2. In version 1 snapshot files may be rewritten (expiration changes a parent), so they are not
   cached.
3. Some clients of version 1 percent-encode names of refs within keys (``ü`` is ``%C3%BC``), others
   do not. Both spellings are found, and listings and look-ups use the plain name.
4. Ancestry is newest first; a cycle raises ``FormatError``.

Specification: "Repo info file"; version 1: "Refs" and "Snapshots".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias
from urllib.parse import quote, unquote

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import (
    REFS,
    branch_ref_key,
    snapshot_key,
    tag_ref_key,
    tag_tombstone_key,
)
from icechunk_format.encoding.repo_info import v1_branches_and_tags as v1_refs
from icechunk_format.encoding.repo_info.file import RepoInfo, SnapshotInfo
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import (
    AlreadyExistsError,
    FormatError,
    InvalidInputError,
    NotFoundError,
)
from icechunk_format.repository.files.metadata_files import load_snapshot
from icechunk_format.repository.files.optional_objects import missing_key, read_ref
from icechunk_format.storage.protocol import ReadRequest, Storage

# Characters that those clients do not encode, in addition to ASCII letters and digits.
_NEVER_ENCODED = " !$&'()+,-./:;=@_"
# The batch fails if a ref is deleted between listing and reading; the next listing omits it.
_LISTING_TRIES = 5


class RepoInfoHistory:
    """History of spec version 2, from the decoded ``repo`` object."""

    def __init__(self, repo_info: RepoInfo) -> None:
        self._repo_info = repo_info

    def branches(self) -> dict[str, SnapshotId]:
        """Return every branch and its tip, sorted by name."""
        return dict(sorted(self._repo_info.branches.items()))

    def tags(self) -> dict[str, SnapshotId]:
        """Return every tag that was not deleted, sorted by name."""
        return dict(sorted(self._repo_info.tags.items()))

    def deleted_tags(self) -> tuple[str, ...]:
        """Return the names of deleted tags, which can never be used again."""
        return self._repo_info.deleted_tags

    def branch_tip(self, name: str) -> SnapshotId | None:
        """Return the tip of one branch, None if it does not exist."""
        return self._repo_info.branches.get(name)

    def tagged_snapshot(self, name: str) -> SnapshotId | None:
        """Return the snapshot of one tag, None if it does not exist."""
        return self._repo_info.tags.get(name)

    def snapshot_info(self, snapshot_id: SnapshotId) -> SnapshotInfo | None:
        """Return the entry of one snapshot, None if ``repo`` does not list it."""
        return self._repo_info.snapshots.get(snapshot_id)

    def ancestry(self, snapshot_id: SnapshotId) -> Iterator[SnapshotInfo]:
        """Yield an existing snapshot and its ancestors, newest first."""
        return self._repo_info.walk(snapshot_id)

    def snapshots(self) -> list[SnapshotInfo]:
        """Return every snapshot that ``repo`` lists, on a branch or not."""
        return list(self._repo_info.snapshots.values())

    def known_snapshots(self) -> list[SnapshotId]:
        """Return ids to suggest for an unknown one: all that ``repo`` lists."""
        return list(self._repo_info.snapshots)


class RefFilesHistory:
    """History of spec version 1, from ref files and the parents in snapshot files."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def branches(self) -> dict[str, SnapshotId]:
        """Return every branch and its tip, sorted by name. Lists ``refs/``."""
        return self._read_refs("branch")

    def tags(self) -> dict[str, SnapshotId]:
        """Return every tag without a tombstone, sorted by name. Lists ``refs/``."""
        return self._read_refs("tag")

    def deleted_tags(self) -> tuple[str, ...]:
        """Return the names of tags with a tombstone. Lists ``refs/``."""
        return tuple(sorted(self.ref_files()[1]))

    def branch_tip(self, name: str) -> SnapshotId | None:
        """Return the tip of one branch, None if it does not exist."""
        for spelling in _spellings(name):
            key = branch_ref_key(spelling)
            ref = read_ref(self._storage, key)
            if ref is not None and _is_named(self._storage, key):
                return ref[0]
        return None

    def tagged_snapshot(self, name: str) -> SnapshotId | None:
        """Return the snapshot of one tag, None if it does not exist or was deleted."""
        for spelling in _spellings(name):
            key, tombstone = tag_ref_key(spelling), tag_tombstone_key(spelling)
            if self._storage.head(tombstone) is not None and _is_named(self._storage, tombstone):
                return None
            ref = read_ref(self._storage, key)
            if ref is not None and _is_named(self._storage, key):
                return ref[0]
        return None

    def snapshot_info(self, snapshot_id: SnapshotId) -> SnapshotInfo | None:
        """Return the entry of one snapshot from its file, None if it does not exist."""
        try:
            snapshot = load_snapshot(self._storage, snapshot_id)
        except NotFoundError as error:
            missing_key(error)
            return None
        return snapshot_summary(snapshot)

    def ancestry(self, snapshot_id: SnapshotId) -> Iterator[SnapshotInfo]:
        """Yield an existing snapshot and its ancestors, newest first; one read for each."""
        seen: set[SnapshotId] = set()
        following: SnapshotId | None = snapshot_id
        child: SnapshotId | None = None
        while following is not None:
            if following in seen:
                raise FormatError(
                    f"snapshot {child} names {following} as its parent, which is its descendant",
                    object_key=snapshot_key(following),
                    file_type="snapshot",
                    field="parent_id",
                )
            seen.add(following)
            info = self.snapshot_info(following)
            if info is None:
                raise NotFoundError(
                    f"the history of snapshot {snapshot_id} in {self._storage.root_url} breaks "
                    f"off: snapshot {child or following} is there, but its parent {following} "
                    "is not",
                    kind="snapshot",
                    snapshot_id=str(following),
                )
            yield info
            child, following = following, info.parent_id

    def snapshots(self) -> list[SnapshotInfo]:
        """Return every snapshot that a branch or tag reaches; one read for each."""
        return list(reached_from(self, self.known_snapshots()).values())

    def known_snapshots(self) -> list[SnapshotId]:
        """Return ids to suggest for an unknown one: tips of branches and tags."""
        return [*self.branches().values(), *self.tags().values()]

    def ref_files(self) -> tuple[dict[tuple[str, str], str], dict[str, str]]:
        """Return the key of every ref by (kind, name), and of every tombstone by the tag's name.

        Deleted tags are included in the refs, since their files are kept.
        """
        keys: dict[tuple[str, str], str] = {}
        deleted: dict[str, str] = {}
        for found in self._storage.list(REFS):
            parsed = v1_refs.parse_ref_key(found.key)
            if parsed is None:
                continue
            name = _name_of(parsed.name)
            if parsed.is_tombstone:
                deleted[name] = found.key
            elif parsed.name == name or (parsed.kind, name) not in keys:
                # If both spellings of a name exist, the plain one is used.
                keys[parsed.kind, name] = found.key
        return keys, deleted

    def _read_refs(self, wanted_kind: str) -> dict[str, SnapshotId]:
        for tries_left in reversed(range(_LISTING_TRIES)):
            keys, deleted = self.ref_files()
            chosen = {
                name: key
                for (kind, name), key in sorted(keys.items())
                if kind == wanted_kind and not (kind == "tag" and name in deleted)
            }
            try:
                contents = self._storage.get_many([ReadRequest(key=k) for k in chosen.values()])
            except NotFoundError as error:
                if tries_left == 0:
                    raise
                missing_key(error)
                continue
            return {
                name: v1_refs.decode_ref_json(data, object_key=key)
                for (name, key), data in zip(chosen.items(), contents, strict=True)
            }
        raise AssertionError("the last try returns or raises")


History: TypeAlias = RepoInfoHistory | RefFilesHistory
"""The history of a repository of either spec version."""


def reached_from(history: History, tips: Iterable[SnapshotId]) -> dict[SnapshotId, SnapshotInfo]:
    """Return the histories of several snapshots; common ancestors are read once."""
    found: dict[SnapshotId, SnapshotInfo] = {}
    for tip in tips:
        for info in history.ancestry(tip) if tip not in found else ():
            if info.id in found:
                break
            found[info.id] = info
    return found


def snapshots_after(
    snapshot_id: SnapshotId, ancestry: Iterable[SnapshotInfo]
) -> list[SnapshotInfo] | None:
    """Return the snapshots of ``ancestry`` (newest first) after one of them, None if it is missing.

    An expired ancestor is found in the list of expired transaction logs of a later snapshot, which
    is returned with only the logs after that ancestor. Version 1 does not record expired snapshots.
    """
    newer: list[SnapshotInfo] = []
    for info in ancestry:
        if info.id == snapshot_id:
            return newer
        pruned = info.pruned_ancestor_tx_logs
        if snapshot_id in pruned:
            after = pruned[pruned.index(snapshot_id) + 1 :]
            return [*newer, replace(info, pruned_ancestor_tx_logs=after)]
        newer.append(info)
    return None


def snapshot_summary(snapshot: Snapshot) -> SnapshotInfo:
    """Return the entry of a snapshot of spec version 1, as ``repo`` would list it."""
    return SnapshotInfo(
        id=snapshot.id,
        parent_id=snapshot.parent_id,
        flushed_at=snapshot.flushed_at,
        message=snapshot.message,
        metadata_items=snapshot.metadata_items,
    )


def _is_named(storage: Storage, key: str) -> bool:
    """Return True if a ref has this key, not one that differs in case (on some file systems)."""
    return not _ignores_case(storage) or any(found.key == key for found in storage.list(REFS))


def _ignores_case(storage: Storage) -> bool:
    return bool(getattr(storage, "ignores_case", False))  # only local files do


def _check_case(storage: Storage, kind: v1_refs.RefKind, name: str, key: str) -> None:
    """Raise AlreadyExistsError if the file system takes a ref for another one."""
    for found in storage.list(REFS) if _ignores_case(storage) else ():
        other = v1_refs.parse_ref_key(found.key)
        stored = found.key.removesuffix(".deleted")
        if other is not None and stored != key and stored.casefold() == key.casefold():
            raise AlreadyExistsError(
                f"{kind} {name!r} would be the same file as {kind} {other.name!r} in "
                f"{storage.root_url}, whose file system does not distinguish upper and lower case; "
                "choose another name, or upgrade the repository to spec version 2",
                kind=kind,
                name=name,
                deleted=False,
            )


def ref_key(storage: Storage, kind: v1_refs.RefKind, name: str) -> str:
    """Return the key of a ref of spec version 1, existing or new."""
    make_key = branch_ref_key if kind == "branch" else tag_ref_key
    _check_case(storage, kind, name, make_key(name))
    spellings = _spellings(name)
    if name and spellings == (name,):
        return make_key(name)
    for spelling in spellings:
        if storage.head(make_key(spelling)) is not None:
            return make_key(spelling)
    v1_refs.check_ref_name(name)
    raise InvalidInputError(
        f"{name!r} cannot be the name of a new {kind} in spec version 1, because clients encode it "
        "differently in keys; use ASCII letters and digits, '-', '_' "
        "and '.'",
        kind=kind,
        name=name,
    )


def _encoded(name: str) -> str:
    return quote(name, safe=_NEVER_ENCODED).replace("~", "%7E")


def _spellings(name: str) -> tuple[str, ...]:
    """Return the spellings of a ref's name within keys; none for an invalid name."""
    if "/" in name:
        return ()
    try:
        encoded = _encoded(name)
    except UnicodeEncodeError:
        return ()
    # Storages refuse keys with a backslash or a control character.
    is_plain = name.isprintable() and "\\" not in name
    found = dict.fromkeys((name, encoded) if is_plain else (encoded,))
    return tuple(spelling for spelling in found if _name_of(spelling) == name)


def _name_of(spelling: str) -> str:
    """Decode a spelling, or return it if it is not the encoding of a name."""
    name = unquote(spelling)
    return name if _encoded(name) == spelling and "/" not in name else spelling
