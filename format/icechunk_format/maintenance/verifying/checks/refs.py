"""Reads refs and history of spec version 1, to find the snapshots to verify.

Rules of this file
------------------
1. An unreadable ref is a finding; other refs are followed.
2. History is followed from every ref through snapshot files. It ends at a missing or damaged file,
   which the check of snapshots reports.

Specification: spec version 1, "References".
"""

from __future__ import annotations

from dataclasses import replace

from icechunk_format.encoding.config.config import VirtualChunkContainer, decode_yaml_config
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import (
    CONFIG_YAML,
    REFS,
    SNAPSHOTS,
    TRANSACTIONS,
    branch_ref_key,
    snapshot_key,
)
from icechunk_format.encoding.repo_info.file import SnapshotInfo
from icechunk_format.encoding.repo_info.v1_branches_and_tags import (
    MAIN,
    decode_ref_json,
    parse_ref_key,
)
from icechunk_format.encoding.snapshot import file as snapshot_file
from icechunk_format.errors import FormatError, NotFoundError, UnsupportedError
from icechunk_format.maintenance.verifying.checks.state import (
    VerifyState,
    check_config,
    check_history,
    count_unreferenced,
    is_all,
    ranked,
)
from icechunk_format.maintenance.verifying.findings import Report
from icechunk_format.repository.history.history import RefFilesHistory, snapshot_summary
from icechunk_format.repository.history.resolve import SnapshotArguments, resolve
from icechunk_format.storage.protocol import Storage


def read_refs_state(storage: Storage, report: Report, wanted: SnapshotArguments) -> VerifyState:
    """Check refs and configuration of spec version 1; return the objects to check next."""
    containers = _check_config(storage, report)
    if not is_all(wanted):
        try:
            history = RefFilesHistory(storage)
            chosen = resolve(history, repository_url=storage.root_url, **wanted)
        except FormatError as error:
            report.add("ref-damaged", error.message, object_key=error.facts["object_key"])
            return VerifyState(containers=containers, is_whole=False)
        info = _read_info(storage, chosen)
        snapshots = ranked([info], from_files=True)
        return VerifyState(snapshots=snapshots, containers=containers, is_whole=False)
    tips, is_whole = _read_tips(storage, report)
    infos = _walk(storage, tips)
    check_history(infos, report)
    known = {snapshot_id.raw for snapshot_id in infos}
    if is_whole:
        count_unreferenced(storage, SNAPSHOTS, known, report)
        count_unreferenced(storage, TRANSACTIONS, known, report)
    return VerifyState(
        snapshots=ranked(infos.values(), from_files=True),
        containers=containers,
        is_whole=is_whole,
    )


def _check_config(storage: Storage, report: Report) -> tuple[VirtualChunkContainer, ...] | None:
    try:
        data = storage.get(CONFIG_YAML).data
    except NotFoundError:
        return ()
    return check_config(decode_yaml_config, data, report.at(object_key=CONFIG_YAML))


def _read_tips(storage: Storage, report: Report) -> tuple[list[SnapshotId], bool]:
    """Return the tips of branches and tags, and whether all could be read."""
    keys: dict[str, str | None] = {}
    deleted: set[str] = set()
    for listed in storage.list(REFS):
        parsed = parse_ref_key(listed.key)
        if parsed is None:
            report.count(f"foreign {REFS}")
        elif parsed.is_tombstone:
            deleted.add(parsed.name)
        else:
            keys[listed.key] = None if parsed.kind == "branch" else parsed.name
    if branch_ref_key(MAIN) not in keys:
        report.add("main-missing", "branch 'main' does not exist", object_key=REFS)
    tips: list[SnapshotId] = []
    is_whole = True
    for object_key, tag in sorted(keys.items()):
        if tag in deleted:
            continue
        try:
            tips.append(decode_ref_json(storage.get(object_key).data, object_key=object_key))
        except NotFoundError:
            continue
        except FormatError as error:
            is_whole = False
            report.add("ref-damaged", error.message, object_key=object_key)
    return tips, is_whole


def _walk(storage: Storage, tips: list[SnapshotId]) -> dict[SnapshotId, SnapshotInfo]:
    found: dict[SnapshotId, SnapshotInfo] = {}
    for tip in tips:
        following: SnapshotId | None = tip
        while following is not None and following not in found:
            info = found[following] = _read_info(storage, following)
            following = info.parent_id
    return found


def _read_info(storage: Storage, snapshot_id: SnapshotId) -> SnapshotInfo:
    """Return the summary of a snapshot file; a blank summary if it cannot be read."""
    object_key = snapshot_key(snapshot_id)
    try:
        snapshot = snapshot_file.decode(storage.get(object_key).data, object_key=object_key)
    except (NotFoundError, FormatError, UnsupportedError):
        return SnapshotInfo(id=snapshot_id, parent_id=None, flushed_at=0, message="")
    return replace(snapshot_summary(snapshot), id=snapshot_id)
