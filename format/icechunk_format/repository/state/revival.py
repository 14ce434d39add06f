"""Protects an unreachable snapshot that becomes used again from a running garbage collection.

A garbage collection reads ``repo``, marks reachable snapshots, removes the others from ``repo`` and
deletes their files. A collection of any library starts over if it finds a new snapshot in ``repo``
on top of one that it would drop. So the update of ``repo`` that uses an unreachable snapshot also
adds a *marker*: a snapshot without nodes on top of it, which no ref reaches. Either the collection
drops the snapshot first, and the update is refused, or it finds the marker and starts over. A ref
would protect the snapshot only while it exists. A later collection drops the marker.

Specification: "Repo Info File". Version 1 has no such update, and no protection.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info.file import SnapshotInfo
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestFiles
from icechunk_format.encoding.transaction_log import TransactionLog
from icechunk_format.repository.files.metadata_files import snapshot_objects
from icechunk_format.repository.history.history import snapshot_summary
from icechunk_format.repository.state.publish import now_in_microseconds
from icechunk_format.repository.state.transitions import Transition


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A snapshot that marks its unreachable parent as used again.

    ``files`` are keys and bytes to be stored before ``repo`` lists the marker.
    """

    info: SnapshotInfo
    files: tuple[tuple[str, bytes], ...]

    def added_to(self, transition: Transition) -> Transition:
        """Return the transition with the marker in its state."""
        snapshots = {**transition.info.snapshots, self.info.id: self.info}
        return replace(transition, info=replace(transition.info, snapshots=snapshots))


def marker_on(
    snapshot_id: SnapshotId,
    flushed_at: int,
    *,
    manifest_files: ManifestFiles | None = None,
    message: str | None = None,
) -> Marker:
    """Return a new marker.

    Parameters
    ----------
    snapshot_id
        The snapshot that is used again; the parent of the marker.
    manifest_files
        Manifests to keep, with their chunks, as long as the marker exists.
    message
        Message of the marker; None for "Snapshot ... is used again".
    """
    marker = Snapshot(
        id=SnapshotId(secrets.token_bytes(SnapshotId.SIZE)),
        parent_id=snapshot_id,
        flushed_at=max(now_in_microseconds(), flushed_at + 1),
        message=f"Snapshot {snapshot_id} is used again" if message is None else message,
        manifest_files=ManifestFiles.empty() if manifest_files is None else manifest_files,
    )
    files = snapshot_objects(marker, TransactionLog(id=marker.id))
    return Marker(info=snapshot_summary(marker), files=tuple(files))
