"""Makes files one dataset: lists, scans, decides, places references, and commits once.

The work on files is handed to a function that runs pieces of it, in this process or with Spark.

Rules of this file
------------------
1. The driver holds what is small: headers, places and counts of files, values of coordinates.
   References go from task to task through staged objects, which are deleted at the end.
2. Nothing is committed, and no configuration changed, before all files are decided and placed.
   Where others have changed the same arrays meanwhile, files are decided and placed anew, as if the
   call had come after theirs; nothing is parsed again.
3. Staged objects are never part of a version, so they may be deleted in every outcome.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from icechunk_format.dataset.writing.chunks.containers import (
    check_prefix,
    outside_of,
    places_of,
)
from icechunk_format.dataset.writing.columns.checks import check_new_place
from icechunk_format.dataset.writing.options import WriteOptions
from icechunk_format.dataset.writing.prepare import branch_missing
from icechunk_format.dataset.writing.result import find_committed
from icechunk_format.errors import (
    AlreadyExistsError,
    ConflictError,
    StorageError,
)
from icechunk_format.progress import ProgressOption, counted, phase
from icechunk_format.repository.chunks.container_options import check_virtual_options
from icechunk_format.repository.chunks.source import ChunkSource
from icechunk_format.repository.files.manifest_files import ManifestFormat
from icechunk_format.repository.repository import Repository
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.node_path import parse_node_path
from icechunk_format.spec.object_keys import STAGING
from icechunk_format.spec.snapshot.file import Snapshot
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.workflows.running import Run
from icechunk_format.workflows.virtualizing.committing import Changes, check_consent, commit_changes
from icechunk_format.workflows.virtualizing.placing.arrays import Builder
from icechunk_format.workflows.virtualizing.placing.place import (
    PlaceContext,
    PlacedRefs,
    place_references,
)
from icechunk_format.workflows.virtualizing.placing.tasks import place_tasks
from icechunk_format.workflows.virtualizing.planning.plan import Decider, new_record
from icechunk_format.workflows.virtualizing.planning.record import Record, read_record
from icechunk_format.workflows.virtualizing.report import (
    KNOWN,
    REFUSED,
    refusal,
    report_table,
)
from icechunk_format.workflows.virtualizing.result import VirtualizeResult
from icechunk_format.workflows.virtualizing.scanning.parse import Parser, check_parser
from icechunk_format.workflows.virtualizing.scanning.scan import ScanContext, merged, scan_files
from icechunk_format.workflows.virtualizing.scanning.source_files import (
    FileAccess,
    SourceFile,
    list_files,
    url_of,
)

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.planning.template import Template
    from icechunk_format.workflows.virtualizing.scanning.headers import Header
    from icechunk_format.workflows.virtualizing.scanning.scan import ScannedPiece

_MOST_FILES_PER_PIECE: Final = 200
_PIECES_PER_CORE: Final = 8
_TASKS_PER_CORE: Final = 2
# Each lost race means that another commit landed.
_MOST_RACES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What is to be virtualized, and how.

    Parameters
    ----------
    names
        Paths, URLs and patterns of files.
    dims
        Concatenated dimensions, slowest first.
    containers
        Whether virtual chunk containers may be added to the repository's configuration.
    options
        Of the write: group, branch, message, transaction.
    authorize, virtual_options
        Where files may be read from beside those that are named, and how.
    """

    location: Location
    names: Sequence[str]
    options: WriteOptions
    dims: tuple[str, ...] = ()
    template: Template | None = None
    loadable: tuple[str, ...] | None = None
    parser: str | Parser | None = None
    on_mismatch: Literal["fail", "skip"] = "fail"
    containers: bool = True
    authorize: tuple[str, ...] = ()
    virtual_options: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scan:
    """What the scan has found, and by which rules of a record (``_rules``)."""

    pieces: list[ScannedPiece]
    headers: list[Header]
    rules: tuple[Any, ...] | None

    def holds_for(self, record: Record | None) -> bool:
        """Mark files that the repository has by now; whether nothing has to be scanned anew."""
        if self.rules != _rules(record):
            return False
        known = _known(record)
        for scanned in (file for piece in self.pieces for file in piece.files):
            own = known.get(scanned.file.url)
            is_in = own is not None and own.is_same(scanned.file)
            if scanned.is_known and not is_in:
                return False
            scanned.is_known = is_in
        return True


def virtualize_files(
    archive: Archive, run: Run, *, cores: int = 1, progress: ProgressOption = None
) -> VirtualizeResult[pa.Table]:
    """Make files part of a repository, in one commit.

    Parameters
    ----------
    archive
        What is to be done.
    run
        Runs pieces of work.
    cores
        How many pieces run at once.
    progress
        Is told how many files are scanned, and how many pieces of arrays are placed.

    Raises
    ------
    InvalidInputError
        The options do not fit, or ``on_mismatch="fail"`` and a file does not; nothing was
        committed. The fact ``report`` has a row for each file then.
    ConflictError
        Others have changed the same arrays meanwhile, and ``on_conflict="fail"``, or too often;
        nothing was committed.
    CommitOutcomeUnknownError
        The store did not say whether the commit landed.
    NotFoundError, ReadOnlyError, StorageError, FormatError
        The repository cannot be written; nothing was committed.
    """
    return _Run(archive, run, cores, progress).result()


class _Run:
    def __init__(self, archive: Archive, run: Run, cores: int, progress: ProgressOption) -> None:
        self._archive, self._run, self._progress = archive, run, progress
        self._cores = max(1, cores)
        # Readers compare whole seconds; what was written within this one has not changed.
        self._now = int(time.time()) + 1
        self._folder = f"{STAGING}{secrets.token_hex(16)}"
        check_virtual_options(archive.virtual_options, archive.authorize)
        self._group = parse_node_path("/" + (archive.options.group or "").strip("/"))
        self._storage = open_storage(archive.location)
        self._open()

    def _open(self) -> None:
        """Read what the repository has now."""
        location, options = self._archive.location, self._archive.options
        self._base: Snapshot | None = None
        self._record: Record | None = None
        repository = self._repository = Repository.find(location)
        if repository is None:
            check_new_place(location, options)
            return
        missing = branch_missing(repository, options)
        base = repository.resolve(branch="main" if missing else options.branch)
        self._base = repository.snapshot(base)
        self._record = read_record(
            self._storage, self._base, self._group, ChunkSource(location=location)
        )
        arrays = []
        if self._base.node(self._group) is not None:
            nodes = self._base.children(self._group)
            arrays = sorted(str(node.path) for node in nodes if node.array is not None)
        if arrays and self._record is None:
            raise AlreadyExistsError(
                f"group {self._group} of {location} has arrays that virtualize did not make "
                f"({', '.join(arrays[:5])}); choose another group with group=",
                kind="arrays",
                group=str(self._group),
            )

    def result(self) -> VirtualizeResult[pa.Table]:
        """Do all of it; again from the plan on where others were faster."""
        files = list_files(self._archive.names, self._archive.virtual_options)
        scan: _Scan | None = None
        try:
            for lost in range(_MOST_RACES + 1):
                done = self._done_before()
                if done is not None:
                    return self._nothing(done, report_table([]), 0, files)
                places = self._places(files)
                if scan is None or not scan.holds_for(self._record):
                    scan = self._scanned(files)
                was_new = self._repository is None
                try:
                    return self._finished(scan, files, places)
                except (ConflictError, AlreadyExistsError) as error:
                    is_race = isinstance(error, ConflictError) or was_new
                    is_asked = self._archive.options.on_conflict == "rebase"
                    if not (is_race and is_asked and lost < _MOST_RACES):
                        raise
                self._open()
            raise AssertionError("the last race raises")
        finally:
            self._delete_staged()

    def _done_before(self) -> SnapshotId | None:
        if self._repository is None:
            return None
        done = find_committed(self._repository, self._archive.options)
        return None if done is None else done.snapshot_id

    def _finished(
        self, scan: _Scan, files: Sequence[SourceFile], places: tuple[str, ...]
    ) -> VirtualizeResult[pa.Table]:
        archive, base = self._archive, None if self._base is None else self._base.id
        pieces, headers = scan.pieces, scan.headers
        decided = Decider(
            pieces=pieces,
            headers=headers,
            dims=archive.dims,
            template=archive.template,
            loadable=archive.loadable,
            record=self._record,
        ).decide()
        if decided.is_refused and archive.on_mismatch == "fail":
            raise refusal(decided.rows, report_table(decided.rows))
        source = self._source(places)
        builder = Builder(
            decided=decided,
            pieces=pieces,
            headers=headers,
            snapshot=self._base,
            group=self._group,
            storage=self._storage,
            source=source,
            dates=frozenset() if archive.template is None else archive.template.dates,
        )
        arrays = builder.arrays()
        table = report_table(decided.rows)
        if not decided.taken:
            return self._nothing(base, table, len(decided.rows), files)
        tasks = place_tasks(arrays, pieces, _TASKS_PER_CORE * self._cores)
        place = PlaceContext(
            location=archive.location,
            source=source,
            manifest_format=self._format(),
            base=base,
            now=self._now,
        )
        answers = self._run(partial(place_references, place), tasks)
        placed = list(counted(answers, self._progress, "Placing references", len(tasks)))
        wanted = {found for one in placed for found in one.places}
        check_consent(wanted, set(places), archive.containers)
        changes = Changes(
            group=self._group,
            groups=builder.groups(),
            arrays=arrays,
            placed=placed,
            record=new_record(decided),
            is_first=self._record is None,
        )
        snapshot_id = self._committed(changes, places, len(decided.taken))
        number = Counter(row.status for row in decided.rows)
        return VirtualizeResult(
            snapshot_id=snapshot_id,
            files_added=len(decided.taken),
            files_skipped=number[KNOWN] + number[REFUSED],
            references=sum(r.num_chunk_refs for one in placed for r in one.manifests),
            places=self._readable_places(placed, files),
            report=table,
        )

    def _committed(self, changes: Changes, places: tuple[str, ...], count: int) -> SnapshotId:
        archive, repository, base = self._archive, self._repository, self._base
        if repository is None:
            repository = Repository.create(
                archive.location,
                spec_version=archive.options.spec_version,
                check_clean_root=False,
            )
        if base is None:
            base = repository.snapshot(repository.resolve(branch="main"))
        return commit_changes(
            repository,
            base.id,
            changes,
            archive.options,
            authorized=(*archive.authorize, *places),
            virtual_options=archive.virtual_options,
            message=f"Virtualize {count:,} file{'' if count == 1 else 's'}",
        )

    def _nothing(
        self, base: SnapshotId | None, table: pa.Table, skipped: int, files: Sequence[SourceFile]
    ) -> VirtualizeResult[pa.Table]:
        return VirtualizeResult(
            snapshot_id=base,
            files_added=0,
            files_skipped=skipped,
            references=0,
            places=self._readable_places([], files),
            report=table,
        )

    # -- before -----------------------------------------------------------------------------

    def _containers(self) -> tuple[Any, ...]:
        if self._repository is None:
            return ()
        return tuple(self._repository.config.virtual_chunk_containers)

    def _format(self) -> ManifestFormat:
        if self._repository is None:
            return ManifestFormat(spec_version=self._archive.options.spec_version)
        return ManifestFormat(
            spec_version=self._repository.spec_version, config=self._repository.config
        )

    def _places(self, files: Sequence[SourceFile]) -> tuple[str, ...]:
        """Return the places that need a container, or refuse to add one."""
        usable = [item for item in self._containers() if item.url_prefix.endswith("/")]
        outside = outside_of(_urls(files), usable)
        found = tuple(sorted(places_of(outside))) if len(outside) else ()
        for place in found:
            check_prefix(place)
        check_consent(set(found), set(), self._archive.containers)
        return found

    def _source(self, places: tuple[str, ...]) -> ChunkSource:
        return ChunkSource(
            location=self._archive.location,
            containers=self._containers(),
            authorized=(*self._archive.authorize, *places),
            virtual_options=self._archive.virtual_options,
        )

    def _scanned(self, files: Sequence[SourceFile]) -> _Scan:
        archive, record = self._archive, self._record
        places = [place.removeprefix("file://") for place in places_of(_urls(files))]
        context = ScanContext(
            location=archive.location,
            access=FileAccess(
                places=(*archive.authorize, *map(url_of, places)),
                containers=self._containers(),
                options=archive.virtual_options,
            ),
            parser=check_parser(archive.parser),
            dims=archive.dims or (record.dims if record else ()),
            loadable=archive.loadable if record is None else record.loaded,
            folder=self._folder,
        )
        known = _known(record)
        wanted = -(-len(files) // (_PIECES_PER_CORE * self._cores))
        size = max(1, min(_MOST_FILES_PER_PIECE, wanted))
        starts = range(0, len(files), size)
        work = [(n, [(file, known.get(file.url)) for file in files[n : n + size]]) for n in starts]
        found = {}
        with phase(self._progress, "Scanning files", len(files)) as advance:
            for number, scanned in self._run(partial(_scan, context), work):
                found[number] = scanned
                advance(len(files[number : number + size]))
        pieces = [piece for number in starts for piece in found[number]]
        return _Scan(pieces=pieces, headers=merged(pieces), rules=_rules(record))

    # -- after ------------------------------------------------------------------------------

    def _readable_places(
        self, placed: Sequence[PlacedRefs], files: Sequence[SourceFile]
    ) -> tuple[str, ...]:
        found = {place for one in placed for place in one.places}
        urls = _urls(files)
        for container in self._containers():
            if len(outside_of(urls, [container])) < len(urls):
                found.add(container.url_prefix)
        return tuple(sorted(found))

    def _delete_staged(self) -> None:
        try:
            keys = [info.key for info in self._storage.list(f"{self._folder}/")]
            self._storage.delete_many(keys)
        except StorageError:
            return  # what stays is no part of any version


def _urls(files: Sequence[SourceFile]) -> pa.Array:
    return pa.array([file.url for file in files], pa.string())


def _known(record: Record | None) -> dict[str, SourceFile]:
    return {} if record is None else {placed.file.url: placed.file for placed in record.files}


def _rules(record: Record | None) -> tuple[Any, ...] | None:
    return None if record is None else (record.dims, record.loaded)


def _scan(context: ScanContext, work: tuple[int, Any]) -> tuple[int, Any]:
    number, piece = work
    return number, scan_files(context, piece)
