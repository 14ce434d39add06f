"""Verifies that every object of a repository exists, can be read, and follows the format.

``verify`` runs the stages of ``parts`` one after another in this process;
``icechunk_spark.maintenance.verify`` runs them on a cluster. Nothing is changed.

Memory: 21 bytes for each object in ``chunks/``, a few hundred bytes for each manifest, and one
decoded manifest.

Specification: all of it; spec versions 1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icechunk_format.encoding.ids import ChunkId
from icechunk_format.encoding.object_keys import CHUNKS, OVERWRITTEN, REFS, REPO, branch_ref_key
from icechunk_format.errors import NotFoundError
from icechunk_format.maintenance.garbage.object_listing import ObjectListing
from icechunk_format.maintenance.verifying.checks.files import VerifyContext
from icechunk_format.maintenance.verifying.checks.refs import read_refs_state
from icechunk_format.maintenance.verifying.checks.state import (
    ID_PREFIXES,
    VerifyState,
    read_repo_state,
)
from icechunk_format.maintenance.verifying.findings import DEFAULT_MAX_FINDINGS, Report
from icechunk_format.maintenance.verifying.parts import (
    WORK_SCHEMA,
    VerifyTask,
    check_joined_rows,
    check_manifest_rows,
    run_verify,
)
from icechunk_format.progress import ProgressOption, phase
from icechunk_format.repository.chunks.source import checked_source
from icechunk_format.repository.history.resolve import SnapshotArguments
from icechunk_format.repository.lifecycle.discovery import MAIN_REF, no_repository
from icechunk_format.storage.location import Location, Place, open_storage
from icechunk_format.storage.options import VirtualAccess

_ROWS_AT_ONCE: Final = 1_000
_BRANCHES: Final = branch_ref_key("")[: -len("/ref.json")]


def verify(
    location: Place,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    deep: bool = False,
    max_findings: int = DEFAULT_MAX_FINDINGS,
    authorized: Sequence[str] = (),
    virtual_options: Mapping[str, str] | None = None,
    progress: ProgressOption = None,
) -> pa.Table:
    """Check a repository, and return the findings.

    The repository may change during the check. Objects deleted meanwhile by a garbage collection
    may be reported as missing: verify again afterwards.

    Parameters
    ----------
    location
        The repository, of spec version 1 or 2.
    branch, tag, snapshot
        At most one of them, to check only this snapshot. By default all snapshots and the history
        are checked, and unreferenced objects are counted.
    deep
        Fetch and decode every chunk. Virtual chunks are decoded if authorized.
    max_findings
        Maximum number of rows; one more row counts the omitted findings.
    authorized
        URL prefixes of virtual chunks. Files below them are requested, to check that they exist,
        are long enough, and have not changed. For other virtual references, files are not
        requested.
    virtual_options
        Storage options for these files.
    progress
        Called with the progress; see ``icechunk_format.progress``.

    Returns
    -------
    pyarrow.Table
        One row for each finding, with the columns of ``FINDINGS_SCHEMA``: ``severity`` (``error``,
        ``warning`` or ``info``), ``kind`` (a stable code), the object, node or chunk, ``problem``
        and ``advice``. Errors are first. The result for an undamaged repository has only ``info``
        rows.

    Raises
    ------
    NotFoundError
        The repository or the snapshot does not exist.
    InvalidInputError
        An argument is invalid.
    StorageError
        The storage failed. A damaged or missing object is a finding, not an error.

    Examples
    --------
    >>> verify("weather")["severity"].to_pylist()  # doctest: +SKIP
    """
    plan = plan_verify(
        Location.of(location),
        branch=branch,
        tag=tag,
        snapshot=snapshot,
        deep=deep,
        max_findings=max_findings,
        authorized=authorized,
        virtual_options=virtual_options,
    )
    context, state, report = plan.context, plan.state, plan.report
    everything = VerifyTask(
        snapshots=state.snapshots, backups=state.backups, manifests="" if state.is_whole else None
    )
    rows = run_verify(context, everything, progress)
    work = pa.Table.from_batches(rows, schema=WORK_SCHEMA)
    # Rows without an id are findings, and are first.
    has_id = pc.is_valid(work["id"])
    work = pa.concat_tables([work.filter(pc.invert(has_id)), work.filter(has_id).sort_by("id")])
    objects = ObjectListing.of(context.storage, CHUNKS, progress)
    total = pc.count_distinct(work["id"]).as_py()
    with phase(progress, "Checking manifests", total) as advance:
        batches = work.to_batches(max_chunksize=_ROWS_AT_ONCE)
        used = check_manifest_rows(context, batches, advance)
        for batch in check_joined_rows(context, _joined(used, objects)):
            report.absorb(batch.to_pylist())
    report.count(f"foreign {CHUNKS}", objects.foreign)
    report.count(f"unreferenced {CHUNKS}", *objects.unused())
    return finish_verify(plan)


def _joined(batches: Iterable[pa.RecordBatch], objects: ObjectListing) -> Iterator[pa.RecordBatch]:
    """Add the sizes of chunk objects to rows of references; mark these objects as used."""
    for batch in batches:
        sizes = pa.nulls(batch.num_rows, pa.int64())
        if batch.num_rows and not batch["id"].null_count:
            raw = np.frombuffer(b"".join(batch["id"].to_pylist()), np.uint8)
            index = objects.find(raw.reshape(-1, ChunkId.SIZE))
            exists = index >= 0
            objects.is_used[index[exists]] = True
            sizes = pa.array(objects.sizes).take(pa.array(index, mask=~exists))
        yield batch.append_column("listed_nbytes", sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPlan:
    """A planned verification; ``report`` has the findings of the plan, and merges all others."""

    context: VerifyContext
    state: VerifyState
    report: Report


def plan_verify(
    location: Location,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    deep: bool = False,
    max_findings: int = DEFAULT_MAX_FINDINGS,
    authorized: Sequence[str] = (),
    virtual_options: Mapping[str, str] | None = None,
) -> VerifyPlan:
    """Check ``repo`` or refs, and plan the other checks."""
    report = Report(max_findings)
    wanted = SnapshotArguments(branch=branch, tag=tag, snapshot=snapshot)
    source = checked_source(location, VirtualAccess(tuple(authorized), virtual_options or {}))
    storage = open_storage(location)
    try:
        data = storage.get(REPO).data
    except NotFoundError as error:
        has_refs = storage.head(MAIN_REF) is not None or any(storage.list(_BRANCHES))
        if error.facts.get("kind") != "object" or not has_refs:
            raise no_repository(location) from error
        state = read_refs_state(storage, report, wanted)
    else:
        state = read_repo_state(storage, data, report, wanted)
    context = VerifyContext(
        source=replace(source, containers=state.containers or ()),
        has_containers=state.containers is not None,
        deep=deep,
        max_findings=report.max_findings,
    )
    return VerifyPlan(context=context, state=state, report=report)


def finish_verify(plan: VerifyPlan) -> pa.Table:
    """Return all findings, with totals of checked and unreferenced objects."""
    _add_summary(plan.report, plan.state)
    return plan.report.to_table()


def _add_summary(report: Report, state: VerifyState) -> None:
    totals, nbytes = report.totals, report.total_bytes
    parts = [f"{totals['snapshots']} snapshots", f"{totals['manifests']} manifests"]
    parts += [
        f"{totals[f'{kind} references']} {kind} references ({nbytes[f'{kind} references']} bytes)"
        for kind in ("native", "inline", "virtual")
    ]
    if totals["decoded chunks"]:
        parts.append(
            f"{totals['decoded chunks']} chunks decoded ({nbytes['decoded chunks']} bytes)"
        )
    report.add("verified", f"checked {', '.join(parts)}")
    if totals["unchecked virtual references"]:
        report.add(
            "virtual-unchecked",
            f"the files of {totals['unchecked virtual references']} virtual references were not "
            "checked",
        )
    for prefix in (*ID_PREFIXES, REFS):
        if totals[f"foreign {prefix}"]:
            report.add(
                "foreign-objects",
                f"{totals[f'foreign {prefix}']} objects have names that are not ids",
                object_key=prefix,
            )
    if not state.is_whole:
        return
    doubt = (
        "; some files could not be read, so these may be in use: repair the files before a "
        "garbage collection"
    )
    for prefix in (*ID_PREFIXES, OVERWRITTEN):
        amount = totals[f"unreferenced {prefix}"]
        if amount:
            report.add(
                "unreferenced",
                f"no snapshot refers to {amount} objects of {nbytes[f'unreferenced {prefix}']} "
                f"bytes{doubt if totals['unread'] else ''}",
                object_key=prefix,
            )
