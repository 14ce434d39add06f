"""Combines files to one dataset: lists, scans, plans, writes references, and commits once.

Long because one class holds the state of a call, which is planned again after a conflict.

Rules of this file
------------------
1. The driver holds only small data: headers, spans and counts of files, and values of coordinates.
   Tasks pass references to each other in staged objects, which are deleted at the end.
2. The repository and its configuration are changed only after all files are planned and all
   references are written. If other writers changed the same arrays meanwhile, the call is planned
   again on top of their commit, without parsing files again.
3. Staged objects are not part of a snapshot, so they are deleted after every outcome.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.node_path import NodePath, group_path
from icechunk_format.encoding.object_keys import STAGING
from icechunk_format.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    StorageError,
)
from icechunk_format.groups import Variable
from icechunk_format.groups.changing import (
    check_prefix,
    commit_arrays,
    find_base,
    outside_of,
    path_in,
    prefixes_of,
)
from icechunk_format.options.write import WriteOptions
from icechunk_format.progress import ProgressOption, counted, phase
from icechunk_format.repository.state import RaceLost, until_won
from icechunk_format.storage.batches import batches
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.options import NO_ACCESS, VirtualAccess
from icechunk_format.tables.writing import check_options
from icechunk_format.workflows.running import Run
from icechunk_format.workflows.virtualizing.committing import archive_commit, check_consent
from icechunk_format.workflows.virtualizing.copying.plan import plan_copies
from icechunk_format.workflows.virtualizing.copying.run import CopyReceipt, run_copy
from icechunk_format.workflows.virtualizing.planning.copies import Copying
from icechunk_format.workflows.virtualizing.planning.plan import ArchivePlanner
from icechunk_format.workflows.virtualizing.planning.record import Record, read_record
from icechunk_format.workflows.virtualizing.references.arrays import ArraysPlanner
from icechunk_format.workflows.virtualizing.references.manifests import (
    ReferencesContext,
    run_references,
)
from icechunk_format.workflows.virtualizing.references.tasks import PlannedArray, plan_references
from icechunk_format.workflows.virtualizing.report import KNOWN, REFUSED, Row, refusal, report_table
from icechunk_format.workflows.virtualizing.result import VirtualizeResult
from icechunk_format.workflows.virtualizing.scanning.parse import Parser, check_parser
from icechunk_format.workflows.virtualizing.scanning.scan import (
    ScanContext,
    ScannedFile,
    finish_scan,
    run_scan,
)
from icechunk_format.workflows.virtualizing.scanning.source_files import (
    SourceFile,
    list_files,
    url_of,
)

if TYPE_CHECKING:
    from icechunk_format.encoding.snapshot.file import Snapshot
    from icechunk_format.workflows.virtualizing.planning.template import Template

_MOST_FILES_PER_TASK: Final = 200
_SCANS_PER_CORE: Final = 8
_TASKS_PER_CORE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The request: files, and the group to which they are added."""

    location: Location
    names: Sequence[str]
    """Paths, URLs and patterns of files."""
    options: WriteOptions
    dims: tuple[str, ...] = ()
    """Concatenated dimensions, slowest first; those of ``template`` follow."""
    template: Template | None = None
    loadable: tuple[str, ...] | None = None
    parser: str | Parser | None = None
    on_mismatch: Literal["fail", "skip"] = "fail"
    containers: bool = True
    """Allow adding virtual chunk containers to the repository's configuration."""
    access: VirtualAccess = NO_ACCESS
    """Storage options of the files, and prefixes that may be read besides those of ``names``."""
    copying: Copying | None = None
    """None copies no file."""
    dry_run: bool = False
    """Only scan and compare the files; nothing is stored."""


def virtualize_files(
    archive: Archive, run: Run, *, cores: int = 1, progress: ProgressOption = None
) -> VirtualizeResult[pa.Table]:
    """Add files to a repository, in one commit, with `cores` parallel tasks.

    Raises
    ------
    InvalidInputError
        An option is invalid, or ``on_mismatch="fail"`` and a file cannot be part of the dataset;
        nothing was committed. In the second case, the fact ``report`` has a row for each file.
    ConflictError
        Other writers changed the same arrays meanwhile with ``on_conflict="fail"``, or in every
        attempt; nothing was committed.
    CommitOutcomeUnknownError
        The commit may have succeeded.
    """
    return _Call(archive, run, max(1, cores), progress).result()


class _Call:
    def __init__(self, archive: Archive, run: Run, cores: int, progress: ProgressOption) -> None:
        self._archive, self._run, self._progress = archive, run, progress
        self._cores = cores
        # Rounded up: readers compare whole seconds, and objects may be written within this second.
        self._now = int(time.time()) + 1
        self._folder = f"{STAGING}{secrets.token_hex(16)}"
        check_options(archive.options)
        self._parser = check_parser(archive.parser)
        named = () if archive.template is None else archive.template.dims
        self._dims = tuple(dict.fromkeys((*archive.dims, *named)))
        self._group = group_path(archive.options.group)
        self._open()

    def _open(self) -> None:
        """Read the current state of the repository."""
        archive = self._archive
        destination, base, done = find_base(archive.location, archive.options, archive.access)
        self._destination, self._base, self._done = destination, base, done
        self._containers = destination.chunk_source.containers
        self._record = None if base is None else read_record(destination, base, self._group)
        nodes = [] if base is None or self._record is not None else base.children(self._group)
        arrays = sorted(node.path for node in nodes if node.array is not None)
        if arrays:
            raise AlreadyExistsError(
                f"group {self._group} of {archive.location} has arrays that virtualize did not "
                f"make ({', '.join(arrays[:5])}); choose another group with group=",
                kind="arrays",
                group=str(self._group),
            )

    def result(self) -> VirtualizeResult[pa.Table]:
        """Run the call; after a conflict, repeat everything except the scan."""
        archive = self._archive
        files = list_files(archive.names, archive.access.options)
        self._urls = pa.array([file.url for file in files], pa.string())
        scanned: list[ScannedFile] | None = None
        scan_rules: tuple[object, ...] | None = None

        def attempt(lost: int) -> VirtualizeResult[pa.Table] | RaceLost:
            nonlocal scanned, scan_rules
            if lost:
                self._open()
            if self._done is not None:
                return self._result(self._done.snapshot_id, [])
            prefixes = self._new_prefixes()
            self._authorize(prefixes)
            if scanned is None or scan_rules != self._scan_rules() or not self._mark(scanned):
                scanned, scan_rules = self._scan(files), self._scan_rules()
            was_new = self._base is None
            try:
                return self._commit(scanned, prefixes)
            except (ConflictError, AlreadyExistsError) as error:
                is_race = isinstance(error, ConflictError) or was_new
                if not (is_race and archive.options.on_conflict == "rebase"):
                    raise
                return RaceLost(error=error)

        try:
            return until_won(attempt, archive.location, branch=archive.options.branch)
        finally:
            self._delete_staged()

    def _copy(
        self, arrays: Sequence[PlannedArray]
    ) -> tuple[list[CopyReceipt], dict[str, tuple[str, str]]]:
        """Copy values of files that are not referenced; return receipts, and problems by URL."""
        tasks = [
            task
            for array in arrays
            if array.copies is not None
            for task in plan_copies(array.copies, array.target, self._cores)
        ]
        copying = partial(run_copy, self._destination)
        running = self._run(copying, tasks) if tasks else ()
        receipts = list(counted(running, self._progress, "Copying", len(tasks)))
        problems = {url: why for receipt in receipts for url, why in receipt.problems.items()}
        return receipts, problems

    def _commit(
        self, scanned: Sequence[ScannedFile], prefixes: tuple[str, ...]
    ) -> VirtualizeResult[pa.Table]:
        """Plan the files, write their references, and commit."""
        archive, base = self._archive, self._base
        before = None if base is None else base.id
        plan = self._planner(scanned).plan()
        if plan.is_refused and archive.on_mismatch == "fail":
            raise refusal(plan.rows)
        planner = ArraysPlanner(
            plan=plan,
            snapshot=base,
            group=self._group,
            destination=self._destination,
            dates=frozenset() if archive.template is None else archive.template.dates,
            copying=archive.copying,
        )
        if plan.taken and self._record is not None and base is not None:
            _check_lengths(self._record, base, self._group)
        arrays = planner.arrays()
        if not plan.taken:
            return self._result(before, plan.rows)
        if archive.dry_run:
            planned = sum(row.references for row in plan.rows if row.status != KNOWN)
            return self._result(before, plan.rows, prefixes, len(plan.taken), planned)
        tasks = plan_references(arrays, _TASKS_PER_CORE * self._cores)
        copied, problems = self._copy(arrays)
        if problems:
            for item in scanned:
                item.array, item.problem = problems.get(item.file.url, (item.array, item.problem))
            return self._commit(scanned, prefixes)
        context = ReferencesContext(destination=self._destination, now=self._now)
        running = self._run(partial(run_references, context), tasks)
        receipts = list(counted(running, self._progress, "Placing references", len(tasks)))
        found = {prefix for receipt in receipts for prefix in receipt.prefixes}
        check_consent(found, set(prefixes), archive.containers)
        count = len(plan.taken)
        change = archive_commit(
            self._destination,
            archive.options,
            base,
            group=self._group,
            groups=planner.groups() if self._record is None else {},
            arrays=arrays,
            record=Record(layout=plan.layout, files=plan.files),
            message=f"Virtualize {count:,} file{'' if count == 1 else 's'}",
        )
        done = commit_arrays(change, [*receipts, *(one.task for one in copied)])
        if done.is_skipped:
            return self._result(done.snapshot_id, [])
        references = sum(receipt.chunks for receipt in receipts)
        chunks = sum(one.task.chunks for one in copied)
        return self._result(done.snapshot_id, plan.rows, found, count, references, chunks)

    def _result(
        self,
        snapshot_id: SnapshotId | None,
        rows: Sequence[Row],
        prefixes: Iterable[str] = (),
        added: int = 0,
        references: int = 0,
        chunks: int = 0,
    ) -> VirtualizeResult[pa.Table]:
        urls, found = self._urls, set(prefixes)
        for container in self._containers:
            if len(outside_of(urls, [container])) < len(urls):
                found.add(container.url_prefix)
        number = Counter(row.status for row in rows)
        return VirtualizeResult(
            snapshot_id=snapshot_id,
            files_added=added,
            files_skipped=number[KNOWN] + number[REFUSED] if added else len(rows),
            references=references,
            files_copied=sum(row.is_copied for row in rows),
            chunks=chunks,
            places=tuple(sorted(found)),
            report=report_table(rows),
            dry_run=self._archive.dry_run,
        )

    # -- the repository -----------------------------------------------------------------------

    def _new_prefixes(self) -> tuple[str, ...]:
        """Return the prefixes that need a new container; raise if containers must not be added."""
        if self._archive.copying is not None and self._archive.copying.which == "all":
            return ()
        usable = [item for item in self._containers if item.url_prefix.endswith("/")]
        outside = outside_of(self._urls, usable)
        found = tuple(sorted(prefixes_of(outside))) if len(outside) else ()
        for prefix in found:
            check_prefix(prefix)
        check_consent(set(found), set(), self._archive.containers)
        return found

    def _authorize(self, prefixes: tuple[str, ...]) -> None:
        """Let tasks read the files, besides the prefixes that the user authorized."""
        access, source = self._archive.access, self._destination.chunk_source
        own = (url_of(prefix.removeprefix("file://")) for prefix in prefixes_of(self._urls))
        authorized = (*access.authorized, *prefixes, *own)
        source = replace(source, access=VirtualAccess(authorized, access.options))
        self._destination = replace(self._destination, chunk_source=source)

    # -- the scan -----------------------------------------------------------------------------

    def _scan_rules(self) -> tuple[object, ...] | None:
        """Return the fields of the record that affect a scan."""
        layout = None if self._record is None else self._record.layout
        return None if layout is None else (layout.dims, layout.loaded)

    def _known(self) -> dict[str, SourceFile]:
        spans = [] if self._record is None else self._record.files
        return {span.file.url: span.file for span in spans}

    def _mark(self, scanned: Sequence[ScannedFile]) -> bool:
        """Mark known files; return True if no file must be scanned again."""
        known = self._known()
        for item in scanned:
            own = known.get(item.file.url)
            is_known = own is not None and own.is_same(item.file)
            if item.is_known and not is_known:
                return False
            item.is_known = is_known
        return True

    def _scan(self, files: Sequence[SourceFile]) -> list[ScannedFile]:
        archive, known = self._archive, self._known()
        layout = None if self._record is None else self._record.layout
        context = ScanContext(
            destination=self._destination,
            parser=self._parser,
            dims=self._dims or (() if layout is None else layout.dims),
            loadable=archive.loadable if layout is None else tuple(sorted(layout.loaded)),
            folder=None if archive.dry_run else self._folder,
        )
        receipts: list[list[ScannedFile]] = []
        numbered = list(enumerate(files))
        if self._record is None and len(files) > 1:
            # Wrong options are found by one file, before all others are opened.
            [first] = self._run(partial(run_scan, context), [[(0, files[0], None)]])
            if first[0].problem is None:
                self._planner(first).check(len(self._urls))
            receipts, numbered = [first], numbered[1:]
        wanted = -(-len(files) // (_SCANS_PER_CORE * self._cores))
        size = max(1, min(_MOST_FILES_PER_TASK, wanted))
        listed = [(number, file, known.get(file.url)) for number, file in numbered]
        tasks = list(batches(listed, size))
        with phase(self._progress, "Scanning files", len(files)) as advance:
            advance(sum(map(len, receipts)))
            for receipt in self._run(partial(run_scan, context), tasks):
                receipts.append(receipt)
                advance(len(receipt))
        return finish_scan(receipts)

    def _planner(self, scanned: Sequence[ScannedFile]) -> ArchivePlanner:
        return ArchivePlanner(
            files=scanned,
            dims=self._dims,
            template=self._archive.template,
            loadable=self._archive.loadable,
            record=self._record,
            copying=self._archive.copying,
        )

    def _delete_staged(self) -> None:
        if self._archive.dry_run:
            return
        storage = open_storage(self._archive.location)
        try:
            storage.delete_many([info.key for info in storage.list(f"{self._folder}/")])
        except StorageError:
            return  # harmless: remaining objects are not part of a snapshot


def _check_lengths(record: Record, base: Snapshot, group: NodePath) -> None:
    """Raise InvalidInputError if others appended labels to the arrays, or deleted some."""
    dims = record.layout.dims
    for path in record.layout.documents:
        node = base.node(path_in(group, path))
        if node is None or node.array is None or not record.files:
            continue
        metadata = Variable(node).metadata
        for dim, length in zip(metadata.dimension_names or (), metadata.shape, strict=False):
            if dim not in dims:
                continue
            axis = dims.index(dim)
            ends = (s.starts.at(path)[axis] + s.lengths.at(path)[axis] for s in record.files)
            if length != (end := max(ends)):
                raise InvalidInputError(
                    f"array {node.path} has {length:,} elements along {dim}, and its files have "
                    f"{end:,}: labels were appended or deleted after they were virtualized, so "
                    "that no place for further files is known; virtualize to another group with "
                    "group=",
                    variable=path,
                    dimension=dim,
                )
