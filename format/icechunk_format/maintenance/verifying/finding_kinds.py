"""Declares every kind of finding of ``verify``: its code, its severity, and what to do.

Rules of this file
------------------
1. Codes are stable: scripts and alarms filter by them. A kind is added, never renamed.
2. *error*: data cannot be read, are read wrongly, or other clients refuse the repository.
   *warning*: data are read as they should, but history, cleanliness or speed suffer.
   *info*: nothing is wrong.
3. Advice is for people who did not write the files, so it names actions, not causes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning", "info"]

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class FindingKind:
    """How bad a kind of finding is, and what to do about it."""

    severity: Severity
    advice: str


_RESTORE = "put the object back from a copy or an older version of the bucket"
_RECOMMIT = "write the array again in a new commit; older versions stay as they are"
_REWRITE = "run rewrite_manifests on the branch, which writes the lists anew"
_RESET = "reset the branch to a version without this finding, or write the node again"

KINDS: Final[dict[str, FindingKind]] = {
    # The repository.
    "repo-damaged": FindingKind(
        "error",
        "stop all writers, then copy the newest readable backup below overwritten/ over 'repo'; "
        "changes since that backup are lost from history, not from storage",
    ),
    "repo-unsorted": FindingKind(
        "error", "make any change with this library, such as setting metadata: it writes lists anew"
    ),
    "main-missing": FindingKind("error", "create the branch main on the version it should have"),
    "history-cycle": FindingKind(
        "error", "copy the newest backup of 'repo' without the loop over it; tell its writer"
    ),
    "tag-deleted-but-present": FindingKind(
        "error", "delete the tag again, and create one of another name if it is needed"
    ),
    "operations-log-invalid": FindingKind(
        "error",
        "copy the newest backup whose log is in order over 'repo', while nobody writes",
    ),
    "snapshot-time-reversed": FindingKind(
        "warning", "set the clock of the writers; reading 'as of' a time may find the wrong version"
    ),
    "config-damaged": FindingKind("error", "save the configuration of the repository anew"),
    "container-ignored": FindingKind(
        "warning", "save the virtual chunk container with a URL prefix that ends with '/'"
    ),
    "metadata-damaged": FindingKind("warning", "set the metadata anew; data are not affected"),
    "backup-missing": FindingKind(
        "warning", "nothing, if old backups were deleted on purpose: the operations log ends there"
    ),
    "backup-damaged": FindingKind(
        "warning",
        "delete the backup: the operations log then ends there, and data are not affected",
    ),
    "ref-damaged": FindingKind("error", "reset the branch, or create a tag of another name"),
    # Snapshots and their nodes.
    "snapshot-missing": FindingKind(
        "error", f"{_RESTORE}, or reset branches to an older version and delete tags of this one"
    ),
    "snapshot-damaged": FindingKind(
        "error", f"{_RESTORE}, or reset branches to an older version and delete tags of this one"
    ),
    "snapshot-id-mismatch": FindingKind("error", f"another file was copied over it: {_RESTORE}"),
    "snapshot-unsorted": FindingKind(
        "error", "commit any change to the branch with this library, which sorts the nodes"
    ),
    "snapshot-differs-from-repo": FindingKind(
        "warning", f"the file is not the one that was committed: {_RESTORE}"
    ),
    "node-path-duplicate": FindingKind(
        "error", "delete the path on the branch and write the node again, or reset the branch"
    ),
    "node-path-odd": FindingKind(
        "warning", "move the node on the branch to a path that can be named, or delete it"
    ),
    "node-id-duplicate": FindingKind("error", _RESET),
    "node-parent-missing": FindingKind(
        "error", "create the missing group on the branch, or delete the node"
    ),
    "node-parent-not-group": FindingKind("error", "move or delete the node on the branch"),
    "root-missing": FindingKind("warning", "create the root group '/' on the branch"),
    "zarr-json-damaged": FindingKind("error", f"write the node's metadata again, or {_RESET}"),
    "array-unsupported": FindingKind(
        "info", "nothing; install what the text names, or upgrade icechunk-spark, to read the array"
    ),
    "array-shape-mismatch": FindingKind("error", f"resize the array to its shape, or {_RESET}"),
    "array-grid-mismatch": FindingKind("error", f"resize the array to its shape, or {_RESET}"),
    "array-names-mismatch": FindingKind("warning", "write the array's metadata again"),
    "manifest-unlisted": FindingKind("error", _REWRITE),
    "manifest-unused": FindingKind("info", "nothing; rewrite_manifests leaves it out"),
    "extents-overlap": FindingKind(
        "error", f"some chunks may be hidden by others of the same place: {_RECOMMIT}"
    ),
    "extents-outside-grid": FindingKind(
        "warning", "resize the array to its present shape, which drops references beyond it"
    ),
    # Transaction logs.
    "log-missing": FindingKind(
        "warning", "nothing for reading; a diff or a rebase across this version is incomplete"
    ),
    "log-damaged": FindingKind(
        "error", "delete the log: data are not affected, and a diff then counts it as missing"
    ),
    "log-id-mismatch": FindingKind(
        "error", "delete the log: data are not affected, and a diff then counts it as missing"
    ),
    "log-unsorted": FindingKind("warning", "nothing for reading; tell the writer of the version"),
    "log-unknown-node": FindingKind(
        "warning", "look at this version: a change that its writer made may have been dropped"
    ),
    # Manifests and references.
    "manifest-missing": FindingKind("error", f"{_RESTORE}, or {_RECOMMIT}"),
    "manifest-damaged": FindingKind("error", f"{_RESTORE}, or {_RECOMMIT}"),
    "manifest-id-mismatch": FindingKind("error", f"another file was copied over it: {_RESTORE}"),
    "manifest-size-mismatch": FindingKind(
        "error", f"the file is not as it was written: {_RESTORE}"
    ),
    "manifest-count-mismatch": FindingKind("warning", _REWRITE),
    "manifest-unsorted": FindingKind("error", _REWRITE),
    "manifest-lacks-array": FindingKind("error", f"its chunks read as fill values: {_RECOMMIT}"),
    "manifest-empty": FindingKind("warning", _REWRITE),
    "ref-duplicate": FindingKind("error", f"which of them counts is chance: {_RECOMMIT}"),
    "ref-dimensions": FindingKind("error", f"no reader finds such chunks: {_RECOMMIT}"),
    "ref-ambiguous": FindingKind("error", f"which of them counts is chance: {_RECOMMIT}"),
    "ref-empty": FindingKind("warning", "delete the chunk if it should hold fill values only"),
    "ref-range": FindingKind("error", _RECOMMIT),
    "ref-outside-extents": FindingKind(
        "error", f"readers do not look for these chunks here and see fill values: {_REWRITE}"
    ),
    "ref-outside-grid": FindingKind(
        "warning", "resize the array to its present shape, which drops references beyond it"
    ),
    "extents-not-tight": FindingKind("warning", _REWRITE),
    # Chunks.
    "chunk-missing": FindingKind("error", f"{_RESTORE}, or {_RECOMMIT}"),
    "chunk-too-short": FindingKind("error", f"{_RESTORE}, or {_RECOMMIT}"),
    "chunk-undecodable": FindingKind("error", f"{_RESTORE}, or {_RECOMMIT}"),
    "virtual-location-bad": FindingKind("error", "set the virtual references with right locations"),
    "virtual-container-unknown": FindingKind(
        "warning", "save a virtual chunk container for the place: other clients refuse to read it"
    ),
    "virtual-missing": FindingKind("error", "put the file back, or set the references anew"),
    "virtual-too-short": FindingKind("error", "the file was replaced: set the references anew"),
    "virtual-modified": FindingKind("error", "the file was replaced: set the references anew"),
    # Nothing wrong.
    "verified": FindingKind("info", "nothing"),
    "virtual-unchecked": FindingKind(
        "info", "authorise the places to have the files looked at, too"
    ),
    "unreferenced": FindingKind(
        "info", "nothing; garbage collection deletes them if no writer is using them"
    ),
    "foreign-objects": FindingKind("info", "nothing; move them to a place of their own"),
    "v1-leftovers": FindingKind(
        "info", "delete refs/ and config.yaml once no old client is in use"
    ),
    "left-out": FindingKind("info", "repair what is listed, or raise max_findings"),
}
