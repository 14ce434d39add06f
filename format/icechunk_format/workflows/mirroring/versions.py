"""Finds mirrored versions of a table, and counts the snapshots missing in a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow.fs as pa_fs

from icechunk_format.display import shown_by
from icechunk_format.display.plain_text import to_timestamp
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.errors import FormatError, InvalidInputError, NotFoundError
from icechunk_format.names import nearest
from icechunk_format.repository import RepositoryReader
from icechunk_format.repository.history import snapshots_after
from icechunk_format.storage.location import Location
from icechunk_format.workflows.mirroring.delta_table import DeltaTarget, Mirrored, files_of, records
from icechunk_format.workflows.mirroring.record import MirrorRecord

_MOST_SHOWN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredFiles:
    """A mirrored version and its Parquet files."""

    version: int
    record: MirrorRecord
    paths: tuple[str, ...]
    """URLs of the files."""
    schema_json: str
    """The schema in the JSON format of Delta and Spark."""


@shown_by("records.record")
@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """The newest snapshots of a copy and of its branch.

    Attributes
    ----------
    version
        The version of the Delta table with the newest copied snapshot.
    snapshot_id
        The newest copied snapshot.
    committed_at
        The commit time of this snapshot.
    branch
        The branch that the table follows.
    branch_snapshot_id
        The newest snapshot of this branch.
    branch_committed_at
        The commit time of the branch's snapshot.
    snapshots_behind
        Number of snapshots after the copied snapshot; None if the copied snapshot is not in the
        history of the branch, because the branch was reset or the snapshot expired.
    """

    version: int
    snapshot_id: str
    committed_at: datetime
    branch: str
    branch_snapshot_id: str
    branch_committed_at: datetime
    snapshots_behind: int | None

    @property
    def is_fresh(self) -> bool:
        """Return True if the copy holds the newest snapshot of its branch."""
        return self.snapshots_behind == 0


def _source(record: MirrorRecord, locate: Callable[[str], Location]) -> Location:
    """Return the location of the repository in a record.

    A table is untrusted, so it must not choose the hosts to contact or the code that fsspec loads.
    Raises InvalidInputError for such a URL unless the caller chose a client.
    """
    location = locate(record.repository)
    if location.address.kind in ("http", "other") and location.client == "auto":
        raise InvalidInputError(
            f"the copy names {location} as its repository, and URLs of this kind are not contacted"
            " by default: give storage.client=fsspec if you trust the table",
            found=str(location),
        )
    return location


def freshness(target: DeltaTarget, *, locate: Callable[[str], Location] = Location) -> Freshness:
    """Count the snapshots of the branch that are missing in its copy.

    Parameters
    ----------
    locate
        Returns the location of the repository at a URL, with its client and options.
    """
    newest = newest_copy(target)
    record = newest.record
    repository = RepositoryReader.open(_source(record, locate)).as_read()
    tip = repository.resolve(branch=record.branch)
    after = snapshots_after(SnapshotId.parse(record.snapshot_id), repository.ancestry(snapshot=tip))
    return Freshness(
        version=newest.version,
        snapshot_id=record.snapshot_id,
        committed_at=record.committed,
        branch=record.branch,
        branch_snapshot_id=str(tip),
        branch_committed_at=to_timestamp(repository.snapshot_info(tip).flushed_at),
        snapshots_behind=None if after is None else len(after),
    )


def newest_copy(target: DeltaTarget) -> Mirrored:
    """Return the newest version with a record; raise NotFoundError if there is none."""
    newest = next(records(target, target.existing()), None)
    if newest is None:
        raise target.no_copy()
    return newest


def find_files(
    target: DeltaTarget,
    *,
    tag: str | None = None,
    snapshot: str | None = None,
    as_of: datetime | None = None,
    locate: Callable[[str], Location] = Location,
) -> MirroredFiles:
    """Return the files of a mirrored snapshot, by default the newest.

    Parameters
    ----------
    tag, snapshot, as_of
        At most one of them: a tag of the repository, the id of a snapshot, or a timestamp, which
        selects the newest copied snapshot committed at or before it.
    locate
        Returns the location of the repository at a URL, to resolve a tag.
    """
    given = [n for n, v in (("tag", tag), ("snapshot", snapshot), ("asOf", as_of)) if v is not None]
    if len(given) > 1:
        raise InvalidInputError(f"{' and '.join(given)} exclude one another: give one of them")
    table = target.existing()
    wanted = snapshot
    if tag is not None:
        source = RepositoryReader.open(_source(newest_copy(target).record, locate))
        wanted = str(source.resolve(tag=tag))
    known: list[str] = []
    for found in records(target, table):
        snapshot_id = found.record.snapshot_id
        is_old_enough = as_of is None or found.record.committed <= as_of
        if is_old_enough and wanted in (None, snapshot_id):
            return _files(target, found, newest_version=int(table.version()))
        known.append(snapshot_id)
    if not known:
        raise target.no_copy()
    near = nearest(str(wanted), known)
    what = f"tag {tag!r}, snapshot {wanted}," if tag else f"snapshot {wanted}"
    if as_of is not None:
        what = f"no snapshot from {as_of.isoformat()} or before"
    shown = ", ".join(known[:_MOST_SHOWN])
    more = f" and {len(known) - _MOST_SHOWN} older ones" if len(known) > _MOST_SHOWN else ""
    raise NotFoundError(
        f"{what} is {'' if as_of else 'not '}in the copy at {target}"
        + (f"; did you mean {near}?" if near else ".")
        + f" It has {shown}{more}. Mirror each commit with every_snapshot=True, or read the"
        " repository itself",
        kind="snapshot",
        name=str(wanted),
        existing=tuple(known),
    )


def _files(target: DeltaTarget, found: Mirrored, *, newest_version: int) -> MirroredFiles:
    table = target.existing(found.version)
    names = list(files_of(target, table))
    foreign = [name for name in names if "/" in name or "\\" in name]
    if foreign:
        raise FormatError(
            f"its file {foreign[0]!r} is not in the folder in which mirror writes all files: copy"
            " all cells again with full=True",
            object_key=f"version {found.version} of {target}",
            file_type="Delta table",
        )
    if found.version != newest_version:
        with target.errors("listing"):
            listed = target.file_system().get_file_info(pa_fs.FileSelector("", recursive=False))
        gone = set(names).difference(info.base_name for info in listed)
        if gone:
            raise NotFoundError(
                f"version {found.version} of {target}, which holds snapshot"
                f" {found.record.snapshot_id}, lost {len(gone)} of its {len(names)} files to a"
                " vacuum: read a newer snapshot, or the repository itself",
                kind="snapshot",
                name=found.record.snapshot_id,
            )
    return MirroredFiles(
        version=found.version,
        record=found.record,
        paths=tuple(f"{target.url}/{name}" for name in names),
        schema_json=table.schema().to_json(),
    )
