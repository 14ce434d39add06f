"""Makes the keys of all objects of a repository, relative to its root.

Rules of this file
------------------
1. No other file builds keys.
2. A name from a user or a file is refused if its key would leave its prefix.

Specification: "File Layout", "Updates to the repo info file"; the ``refs/`` keys belong to spec
version 1.
"""

from __future__ import annotations

from icechunk_format.encoding.ids import ChunkId, ManifestId, SnapshotId
from icechunk_format.errors import InvalidInputError

REPO = "repo"
CONFIG_YAML = "config.yaml"

SNAPSHOTS = "snapshots/"
MANIFESTS = "manifests/"
TRANSACTIONS = "transactions/"
CHUNKS = "chunks/"
OVERWRITTEN = "overwritten/"
REFS = "refs/"
# Not in the specification: intermediate files of writes, until their commit.
STAGING = "staging/"

# 3000-01-01T00:00:00Z in milliseconds: names of backups record the time left until then, so that a
# listing begins with the newest.
_BACKUP_EPOCH_MS = 32_503_680_000_000
_BACKUP_DIGITS = 14
_UNSAFE_SEGMENTS = frozenset({"", ".", ".."})


def snapshot_key(snapshot_id: SnapshotId) -> str:
    """Return the key of a snapshot file."""
    return f"{SNAPSHOTS}{snapshot_id}"


def manifest_key(manifest_id: ManifestId) -> str:
    """Return the key of a manifest file."""
    return f"{MANIFESTS}{manifest_id}"


def transaction_log_key(snapshot_id: SnapshotId) -> str:
    """Return the key of the transaction log of a snapshot."""
    return f"{TRANSACTIONS}{snapshot_id}"


def chunk_key(chunk_id: ChunkId) -> str:
    """Return the key of a chunk object."""
    return f"{CHUNKS}{chunk_id}"


def overwritten_key(name: str) -> str:
    """Return the key of a backup of ``repo`` or ``config.yaml``."""
    if not is_backup_name(name):
        raise InvalidInputError(
            f"{name!r} is not the name of a backup: names must not contain NUL or empty, '.' or "
            "'..' segments",
            found=name,
            allowed="a relative name such as 'repo.30729294865234.S0CHS5WSF158RN937BP0'",
        )
    return f"{OVERWRITTEN}{name}"


def is_backup_name(name: str) -> bool:
    """Return True if a stored ``backup_path`` stays inside ``overwritten/``."""
    return "\0" not in name and _UNSAFE_SEGMENTS.isdisjoint(name.split("/"))


def backup_name(now_ms: int, random12: bytes, *, of: str = REPO) -> str:
    """Return the name below ``overwritten/`` for a copy of an object before it is replaced.

    ``now_ms`` are milliseconds since 1970-01-01T00:00:00Z, and the random bytes distinguish writers
    of one millisecond. ``of`` is ``repo``, or ``config.yaml`` of spec version 1.
    """
    left = _BACKUP_EPOCH_MS - now_ms
    if not 0 <= left < 10**_BACKUP_DIGITS:
        raise InvalidInputError(
            f"the clock of this machine shows {now_ms} ms since 1970, but names of backups need "
            f"a time before the year 3000; correct the clock",
            found=now_ms,
            allowed=f"{_BACKUP_EPOCH_MS - 10**_BACKUP_DIGITS + 1} to {_BACKUP_EPOCH_MS}",
        )
    return f"{of}.{left:0{_BACKUP_DIGITS}d}.{SnapshotId(random12)}"


def branch_ref_key(name: str) -> str:
    """Return the key of a branch in spec version 1."""
    return f"{REFS}branch.{name}/ref.json"


def tag_ref_key(name: str) -> str:
    """Return the key of a tag in spec version 1."""
    return f"{REFS}tag.{name}/ref.json"


def tag_tombstone_key(name: str) -> str:
    """Return the key of the empty object that marks a deleted tag in spec version 1."""
    return f"{REFS}tag.{name}/ref.json.deleted"
