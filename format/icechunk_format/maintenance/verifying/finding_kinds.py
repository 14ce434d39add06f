"""Declares every kind of finding of ``verify``: code, severity and advice.

Rules of this file
------------------
1. Codes are stable, since scripts and alerts filter by them. Kinds are added, never renamed.
2. *error*: data cannot be read, are read wrongly, or other clients refuse the repository.
   *warning*: data are read correctly, but history, tidiness or speed suffer. *info*: not a problem.
3. Advice is for users who did not write the files: it names actions, not causes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning", "info"]

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class FindingKind:
    """The severity and the advice of a kind of finding."""

    severity: Severity
    advice: str


_RESTORE = "restore the object from a copy or from an older version in the bucket"
_LEAVE = "reset branches to an older snapshot and delete tags of this one"
_RECOMMIT = "write the array again in a new commit; older snapshots do not change"
_REWRITE = "run rewrite_manifests on the branch, which writes the lists again"
_DELETE_LOG = "delete the log: data are not affected, and a diff then counts it as missing"
_RESET = "reset the branch to a snapshot without this finding, or write the node again"

_ERRORS: Final = {
    # The repository.
    "repo-damaged": "stop all writers, then copy the newest readable backup below overwritten/ "
    "over 'repo'; changes since that backup are lost from history, not from storage",
    "repo-unsorted": "make any change with this library, such as setting metadata: it writes "
    "lists again",
    "main-missing": "create the branch main at the snapshot that it should have",
    "history-cycle": "copy the newest backup of 'repo' without the cycle over it",
    "tag-deleted-but-present": "delete the tag again, and create one of another name if it is "
    "needed",
    "operations-log-invalid": "copy the newest backup whose log is in order over 'repo', while "
    "all writers are stopped",
    "config-damaged": "save the configuration of the repository again",
    "ref-damaged": "reset the branch, or create a tag of another name",
    # Snapshots and their nodes.
    "snapshot-missing": f"{_RESTORE}, or {_LEAVE}",
    "snapshot-damaged": f"{_RESTORE}, or {_LEAVE}",
    "snapshot-id-mismatch": f"another file was copied over it: {_RESTORE}",
    "snapshot-unsorted": "commit any change to the branch with this library, which sorts the nodes",
    "node-path-duplicate": "delete the path on the branch and write the node again, or reset the "
    "branch",
    "node-id-duplicate": _RESET,
    "node-parent-missing": "create the missing group on the branch, or delete the node",
    "node-parent-not-group": "move or delete the node on the branch",
    "zarr-json-damaged": f"write the node's metadata again, or {_RESET}",
    "array-shape-mismatch": f"resize the array to its shape, or {_RESET}",
    "array-grid-mismatch": f"resize the array to its shape, or {_RESET}",
    "manifest-unlisted": _REWRITE,
    "extents-overlap": f"some chunks may be hidden by others of the same coordinates: {_RECOMMIT}",
    # Transaction logs.
    "log-damaged": _DELETE_LOG,
    "log-id-mismatch": _DELETE_LOG,
    # Manifests and references.
    "manifest-missing": f"{_RESTORE}, or {_RECOMMIT}",
    "manifest-damaged": f"{_RESTORE}, or {_RECOMMIT}",
    "manifest-id-mismatch": f"another file was copied over it: {_RESTORE}",
    "manifest-size-mismatch": f"the file was changed after it was written: {_RESTORE}",
    "manifest-unsorted": _REWRITE,
    "manifest-lacks-array": f"its chunks read as fill values: {_RECOMMIT}",
    "ref-duplicate": f"which of them readers use is undefined: {_RECOMMIT}",
    "ref-dimensions": f"readers do not find these chunks: {_RECOMMIT}",
    "ref-ambiguous": f"which of them readers use is undefined: {_RECOMMIT}",
    "ref-range": _RECOMMIT,
    "ref-outside-extents": f"readers do not look for these chunks here and see fill values: "
    f"{_REWRITE}",
    # Chunks.
    "chunk-missing": f"{_RESTORE}, or {_RECOMMIT}",
    "chunk-too-short": f"{_RESTORE}, or {_RECOMMIT}",
    "chunk-undecodable": f"{_RESTORE}, or {_RECOMMIT}",
    "virtual-location-bad": "set the virtual references again, with valid locations",
    "virtual-missing": "restore the file, or set the references again",
    "virtual-too-short": "the file was replaced: set the references again",
    "virtual-modified": "the file was replaced: set the references again",
}

_WARNINGS: Final = {
    # The repository.
    "snapshot-time-reversed": "set the clock of the writers; reading 'as of' a time may find the "
    "wrong snapshot",
    "container-ignored": "save the virtual chunk container with a URL prefix that ends with '/'",
    "metadata-damaged": "set the metadata again; data are not affected",
    "backup-missing": "nothing, if old backups were deleted on purpose: the operations log ends "
    "there",
    "backup-damaged": "delete the backup: the operations log then ends there, and data are not "
    "affected",
    # Snapshots and their nodes.
    "snapshot-differs-from-repo": f"the file differs from the committed one: {_RESTORE}",
    "node-path-odd": "move the node on the branch to a valid path, or delete it",
    "root-missing": "create the root group '/' on the branch",
    "array-names-mismatch": "write the array's metadata again",
    "extents-outside-grid": "resize the array to its present shape, which drops references beyond "
    "it",
    # Transaction logs.
    "log-missing": "nothing for reading; a diff or a rebase across this snapshot is incomplete",
    "log-unsorted": "nothing for reading; report it to the writer of the snapshot",
    "log-unknown-node": "check this snapshot: a change by its writer may have been lost",
    # Manifests and references.
    "manifest-count-mismatch": _REWRITE,
    "manifest-empty": _REWRITE,
    "ref-empty": "delete the chunk if it should hold fill values only",
    "ref-outside-grid": "resize the array to its present shape, which drops references beyond it",
    "extents-not-tight": _REWRITE,
    # Chunks.
    "virtual-container-unknown": "save a virtual chunk container for the location: other clients "
    "refuse to read it",
}

_NOTES: Final = {
    # Snapshots and their nodes.
    "array-unsupported": "nothing; install the named package, or upgrade icechunk-spark, to "
    "read the array",
    "manifest-unused": "nothing; rewrite_manifests leaves it out",
    # Nothing wrong.
    "verified": "nothing",
    "virtual-unchecked": "authorize the prefixes to have the files checked",
    "unreferenced": "nothing; garbage collection deletes them if no writer is using them",
    "foreign-objects": "nothing; move them to a separate location",
    "v1-leftovers": "delete refs/ and config.yaml once no old client is in use",
    "left-out": "repair the listed findings, or raise max_findings",
}

KINDS: Final[dict[str, FindingKind]] = {
    kind: FindingKind(severity, advice)
    for severity, kinds in zip(SEVERITIES, (_ERRORS, _WARNINGS, _NOTES), strict=True)
    for kind, advice in kinds.items()
}
