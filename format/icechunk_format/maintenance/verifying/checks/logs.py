"""Checks that transaction logs exist, can be read, and name nodes of their snapshots.

A missing log is a warning, since only rebase and diff need logs, not reads of data.

Rules of this file
------------------
1. New, updated or moved nodes of a log must be in its snapshot, unless they are also deleted in the
   log: the log of an amended commit has the changes of two commits. Deleted nodes are not looked
   up, since a rebase or an expiration may have replaced the parent that had them.

Specification: "Transaction Log Files".
"""

from __future__ import annotations

from icechunk_format.errors import FormatError, UnsupportedError
from icechunk_format.maintenance.verifying.checks.readable import check_order
from icechunk_format.maintenance.verifying.checks.state import Version
from icechunk_format.maintenance.verifying.findings import Report, Spot
from icechunk_format.spec import transaction_log as transaction_log_file
from icechunk_format.spec.envelope import FileType
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.object_keys import transaction_log_key
from icechunk_format.spec.snapshot.file import Snapshot
from icechunk_format.spec.snapshot.stored_order import unsorted_in_transaction_log
from icechunk_format.spec.transaction_log import TransactionLog

_SHOWN = 3


def check_log(
    version: Version,
    log_id: SnapshotId,
    data: bytes | None,
    snapshot: Snapshot | None,
    report: Report,
) -> None:
    """Check a transaction log of a snapshot, or of an expired ancestor.

    ``data`` is None if the file is missing, ``snapshot`` if the snapshot could not be read.
    """
    object_key = transaction_log_key(log_id)
    here = version.mark.at(report, object_key)
    is_own = log_id == version.snapshot_id
    if data is None:
        if version.has_log or not is_own:
            here.add("log-missing", "the transaction log does not exist")
        return
    report.count("transaction logs")
    try:
        log = transaction_log_file.decode(data, object_key=object_key)
    except (FormatError, UnsupportedError) as error:
        here.add("log-damaged", error.message.splitlines()[0])
        return
    if log.id != log_id:
        here.add("log-id-mismatch", f"the file has the id {log.id}")
        return
    order = FileType.TRANSACTION_LOG, unsorted_in_transaction_log, "log-unsorted"
    check_order(data, *order, here, follows="")
    if is_own and snapshot is not None:
        _check_nodes(log, snapshot, here)


def _check_nodes(log: TransactionLog, snapshot: Snapshot, here: Spot) -> None:
    named = {*log.new_groups, *log.new_arrays, *log.updated_groups, *log.updated_arrays}
    named |= {move.node_id for move in log.moved_nodes} | set(log.updated_chunks)
    named -= {*log.deleted_groups, *log.deleted_arrays}
    unknown = sorted(named - {node.id for node in snapshot.nodes})
    # The log may name two nodes with the same path, of which the snapshot yields only one.
    if unknown and not snapshot.duplicate_paths:
        shown = ", ".join(map(str, unknown[:_SHOWN])) + (", ..." if len(unknown) > _SHOWN else "")
        here.add(
            "log-unknown-node",
            f"it records changes of {len(unknown)} nodes that the snapshot does not have: {shown}",
        )
