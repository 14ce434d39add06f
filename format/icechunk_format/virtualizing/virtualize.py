"""Makes files one dataset: lists, scans, decides, places references, and commits once.

The work on files is handed to a function that runs pieces of it, in this process or with Spark.

Rules of this file
------------------
1. The driver holds what is small: headers, places and counts of files, values of coordinates.
   References go from task to task through staged objects, which are deleted at the end.
2. Nothing is committed, and no configuration changed, before all files are decided and placed.
3. Staged objects are never part of a version, so they may be deleted in every outcome.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa

from icechunk_format.arrays.new_nodes import build_group_metadata
from icechunk_format.dataset.writing.chunks.containers import (
    add_containers,
    outside_of,
    places_of,
)
from icechunk_format.dataset.writing.columns.checks import check_new_place
from icechunk_format.dataset.writing.options import WriteOptions
from icechunk_format.dataset.writing.prepare import branch_missing
from icechunk_format.dataset.writing.prepared import path_in
from icechunk_format.dataset.writing.result import find_committed, txn_metadata
from icechunk_format.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    StorageError,
)
from icechunk_format.progress import ProgressOption, counted, phase
from icechunk_format.repository.chunks.container_options import check_virtual_options
from icechunk_format.repository.chunks.source import ChunkSource
from icechunk_format.repository.files.manifest_files import ManifestFormat
from icechunk_format.repository.repository import Repository
from icechunk_format.repository.session.session import WriteSession
from icechunk_format.spec.ids import SnapshotId
from icechunk_format.spec.node_path import ROOT, parse_node_path
from icechunk_format.spec.snapshot.file import Snapshot
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.virtualizing.placing.arrays import Builder
from icechunk_format.virtualizing.placing.place import PlaceContext, PlacedRefs, place_references
from icechunk_format.virtualizing.placing.tasks import PlannedArray, place_tasks
from icechunk_format.virtualizing.planning.members import Decided
from icechunk_format.virtualizing.planning.plan import decide, new_record
from icechunk_format.virtualizing.planning.record import Record, read_record, write_record
from icechunk_format.virtualizing.report import (
    KNOWN,
    REFUSED,
    Virtualized,
    counts,
    refusal,
    report_table,
)
from icechunk_format.virtualizing.scanning.parse import Parser, check_parser
from icechunk_format.virtualizing.scanning.scan import ScanContext, merged, scan_files
from icechunk_format.virtualizing.scanning.source_files import FileAccess, SourceFile, list_files

if TYPE_CHECKING:
    from icechunk_format.virtualizing.planning.template import Template

Run = Callable[[Sequence[Any], Callable[[Any], Any]], Iterable[Any]]
"""Runs a function on pieces of work, and returns the answers in any order."""

_MOST_FILES_PER_PIECE: Final = 200
_PIECES_PER_CORE: Final = 8
_TASKS_PER_CORE: Final = 2


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


def virtualize_files(
    archive: Archive, run: Run, *, cores: int = 1, progress: ProgressOption = None
) -> Virtualized:
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
        Others have changed the same arrays meanwhile; nothing was committed.
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
        self._folder = f"staging/{secrets.token_hex(16)}"
        location, options = archive.location, archive.options
        check_virtual_options(archive.virtual_options, archive.authorize)
        self._group = parse_node_path("/" + (options.group or "").strip("/"))
        self._storage = open_storage(location)
        self._repository: Repository | None = None
        self._base: Snapshot | None = None
        self._record: Record | None = None
        if Repository.exists(location):
            self._open(Repository.open(location))
        else:
            check_new_place(location, options)

    def _open(self, repository: Repository) -> None:
        options = self._archive.options
        self._repository = repository
        missing = branch_missing(repository, options)
        base = repository.resolve(branch="main" if missing else options.branch)
        self._base = repository.snapshot(base)
        self._record = read_record(
            self._storage, self._base, self._group, ChunkSource(location=self._archive.location)
        )
        arrays = []
        if self._base.node(self._group) is not None:
            nodes = self._base.children(self._group)
            arrays = sorted(str(node.path) for node in nodes if node.array is not None)
        if arrays and self._record is None:
            raise AlreadyExistsError(
                f"group {self._group} of {self._archive.location} has arrays that virtualize did "
                f"not make ({', '.join(arrays[:5])}); choose another group with group=",
                kind="arrays",
                group=str(self._group),
            )

    def result(self) -> Virtualized:
        """Do all of it."""
        archive, options = self._archive, self._archive.options
        if self._repository is not None:
            done = find_committed(self._repository, options)
            if done is not None:
                return self._nothing(done.snapshot_id, report_table([]), 0)
        files = list_files(archive.names, archive.virtual_options)
        places = self._places(files)
        access = FileAccess(
            places=(*archive.authorize, *places_of(_urls(files))),
            containers=() if self._repository is None else self._containers(),
            options=archive.virtual_options,
        )
        try:
            return self._finished(files, access, places)
        finally:
            self._delete_staged()

    def _finished(
        self, files: list[SourceFile], access: FileAccess, places: tuple[str, ...]
    ) -> Virtualized:
        archive = self._archive
        context = ScanContext(
            location=archive.location,
            access=access,
            parser=check_parser(archive.parser),
            dims=archive.dims or (self._record.dims if self._record else ()),
            loadable=archive.loadable if self._record is None else self._record.loaded,
            folder=self._folder,
        )
        pieces = self._scanned(context, files)
        headers = merged(pieces)
        decided = decide(
            pieces,
            headers,
            dims=archive.dims,
            template=archive.template,
            loadable=archive.loadable,
            record=self._record,
        )
        source = self._source(places)
        builder = Builder(
            decided=decided,
            pieces=pieces,
            headers=headers,
            snapshot=self._base,
            group=self._group,
            storage=self._storage,
            source=source,
        )
        is_fail = archive.on_mismatch == "fail"
        if decided.is_refused and is_fail:
            raise refusal(decided.rows, report_table(decided.rows))
        arrays = builder.arrays()
        table = report_table(decided.rows)
        if not decided.taken:
            base = None if self._base is None else self._base.id
            return self._nothing(base, table, len(decided.rows))
        tasks = place_tasks(arrays, pieces, _TASKS_PER_CORE * self._cores)
        place = PlaceContext(
            location=archive.location,
            source=source,
            manifest_format=self._format(),
            base=None if self._base is None else self._base.id,
            now=self._now,
        )
        answers = self._run(tasks, partial(place_references, place))
        placed = list(counted(answers, self._progress, "Placing references", len(tasks)))
        snapshot_id = self._commit(decided, arrays, builder.groups(), placed, places)
        number = counts(decided.rows)
        return Virtualized(
            snapshot_id=snapshot_id,
            files_added=len(decided.taken),
            files_skipped=number[KNOWN] + number[REFUSED],
            references=sum(r.num_chunk_refs for one in placed for r in one.manifests),
            places=self._readable_places(placed, files),
            report=table,
        )

    def _nothing(self, base: SnapshotId | None, table: pa.Table, skipped: int) -> Virtualized:
        return Virtualized(
            snapshot_id=base,
            files_added=0,
            files_skipped=skipped,
            references=0,
            places=(),
            report=table,
        )

    # -- before -----------------------------------------------------------------------------

    def _containers(self) -> tuple[Any, ...]:
        assert self._repository is not None
        return tuple(self._repository.config.virtual_chunk_containers)

    def _format(self) -> ManifestFormat:
        if self._repository is None:
            return ManifestFormat(spec_version=self._archive.options.spec_version)
        return ManifestFormat(
            spec_version=self._repository.spec_version, config=self._repository.config
        )

    def _places(self, files: Sequence[SourceFile]) -> tuple[str, ...]:
        """Return the places that need a container, or refuse to add one."""
        known = [] if self._repository is None else self._containers()
        usable = [item for item in known if item.url_prefix.endswith("/")]
        outside = outside_of(_urls(files), usable)
        found = tuple(sorted(places_of(outside))) if len(outside) else ()
        if found and not self._archive.containers:
            raise InvalidInputError(
                f"containers=False, and no virtual chunk container of the repository covers "
                f"{found[0]}: readers could not fetch the chunks. Add a container to the "
                "configuration, or leave containers=False out",
                option="containers",
                place=found[0],
            )
        return found

    def _source(self, places: tuple[str, ...]) -> ChunkSource:
        return ChunkSource(
            location=self._archive.location,
            containers=() if self._repository is None else self._containers(),
            authorized=(*self._archive.authorize, *places),
            virtual_options=self._archive.virtual_options,
        )

    def _scanned(self, context: ScanContext, files: Sequence[SourceFile]) -> list[Any]:
        known = {} if self._record is None else {p.file.url: p.file for p in self._record.files}
        wanted = -(-len(files) // (_PIECES_PER_CORE * self._cores))
        size = max(1, min(_MOST_FILES_PER_PIECE, wanted))
        starts = range(0, len(files), size)
        work = [(n, [(file, known.get(file.url)) for file in files[n : n + size]]) for n in starts]
        found = {}
        with phase(self._progress, "Scanning files", len(files)) as advance:
            for number, pieces in self._run(work, partial(_scan, context)):
                found[number] = pieces
                advance(len(files[number : number + size]))
        return [piece for number in starts for piece in found[number]]

    # -- after ------------------------------------------------------------------------------

    def _commit(
        self,
        decided: Decided,
        arrays: Sequence[PlannedArray],
        groups: Mapping[str, Mapping[str, Any]],
        placed: Sequence[PlacedRefs],
        places: tuple[str, ...],
    ) -> SnapshotId:
        archive, options = self._archive, self._archive.options
        wanted = {place for one in placed for place in one.places}
        if wanted - set(places) and not archive.containers:
            [first, *_] = sorted(wanted - set(places))
            raise InvalidInputError(
                f"containers=False, and chunks lie below {first}, which no container covers; add "
                "one to the configuration, or leave containers=False out",
                option="containers",
                place=first,
            )
        repository = self._repository
        if repository is None:
            repository = Repository.create(
                archive.location, spec_version=options.spec_version, check_clean_root=False
            )
        base = self._base
        if base is None:
            base = repository.snapshot(repository.resolve(branch="main"))
        if branch_missing(repository, options):
            repository.create_branch(options.branch, base.id)
        add_containers(
            repository,
            wanted,
            authorized=(*archive.authorize, *places),
            virtual_options=archive.virtual_options,
        )
        session = repository.writable_session(options.branch, base=base.id)
        self._change(session, arrays, groups, placed)
        write_record(session, self._group, new_record(decided))
        try:
            commit = session.commit(
                options.message or f"Virtualize {len(decided.taken):,} files",
                metadata=txn_metadata(options),
                on_conflict=options.on_conflict,
            )
        except ConflictError:
            done = find_committed(repository, options)
            if done is None or done.snapshot_id is None:
                raise
            return done.snapshot_id
        return commit.snapshot_id

    def _change(
        self,
        session: WriteSession,
        arrays: Sequence[PlannedArray],
        groups: Mapping[str, Mapping[str, Any]],
        placed: Sequence[PlacedRefs],
    ) -> None:
        self._make_groups(session, groups)
        for array in arrays:
            target = array.target
            metadata = target.metadata
            if array.is_new:
                if session.node(target.path) is not None:
                    session.delete(target.path)
                session.create_array(
                    target.path,
                    metadata.to_bytes(),
                    shape=metadata.shape,
                    num_chunks=metadata.grid.num_chunks,
                    dimension_names=metadata.dimension_names,
                    node_id=target.node_id,
                )
            elif target.old_shape != metadata.shape:
                session.update_metadata(
                    target.path,
                    metadata.to_bytes(),
                    shape=metadata.shape,
                    num_chunks=metadata.grid.num_chunks,
                )
            if array.values is not None:
                _set_values(session, array)
            for lower, upper in array.cleared:
                sizes = [b - a for a, b in zip(lower, upper, strict=True)]
                coords = np.indices(sizes).reshape(len(sizes), -1).T + np.array(lower, np.int64)
                session.delete_chunks(target.path, coords)
        for one in placed:
            if one.manifests:
                session.add_manifests(one.path, one.manifests)

    def _make_groups(self, session: WriteSession, groups: Mapping[str, Mapping[str, Any]]) -> None:
        wanted: dict[str, Mapping[str, Any]] = {ROOT: {}}
        parts = [part for part in self._group.split("/") if part]
        for number in range(len(parts)):
            wanted["/" + "/".join(parts[: number + 1])] = {}
        for path in sorted(groups):
            wanted[path_in(self._group, path) if path else str(self._group)] = groups[path]
        for path, attributes in wanted.items():
            node = session.node(path)
            document = build_group_metadata(attributes=attributes, node_path=path)
            if node is None:
                session.create_group(path, document.to_bytes())
            elif attributes and self._record is None:
                session.update_metadata(path, document.to_bytes())

    def _readable_places(
        self, placed: Sequence[PlacedRefs], files: Sequence[SourceFile]
    ) -> tuple[str, ...]:
        found = {place for one in placed for place in one.places}
        for container in [] if self._repository is None else self._containers():
            prefix = container.url_prefix
            if any(file.url.startswith(prefix) for file in files):
                found.add(prefix)
        return tuple(sorted(found))

    def _delete_staged(self) -> None:
        try:
            keys = [info.key for info in self._storage.list(f"{self._folder}/")]
            self._storage.delete_many(keys)
        except StorageError:
            return  # what stays is no part of any version


def _scan(context: ScanContext, work: tuple[int, Any]) -> tuple[int, Any]:
    number, piece = work
    return number, scan_files(context, piece)


def _urls(files: Sequence[SourceFile]) -> pa.Array:
    return pa.array([file.url for file in files], pa.string())


def _set_values(session: WriteSession, array: PlannedArray) -> None:
    """Store the values of an array, from the chunk of the first that changed."""
    metadata, values = array.target.metadata, array.values
    assert values is not None
    codecs, grid = metadata.chunk_codecs(), metadata.grid
    places, payloads = [], []
    for at in np.ndindex(*grid.num_chunks):
        lower, upper = grid.box_of(at)
        if lower and upper[0] <= array.first_changed:
            continue
        chunk = metadata.fill_array(grid.full_chunk_shape(at))
        sizes = [b - a for a, b in zip(lower, upper, strict=True)]
        box = tuple(slice(a, b) for a, b in zip(lower, upper, strict=True))
        chunk[tuple(slice(0, n) for n in sizes)] = values[box]
        places.append(at)
        payloads.append(codecs.encode(chunk))
    if places:
        coords = np.array(places, np.int64).reshape(len(places), metadata.ndim)
        session.set_chunks(array.target.path, coords, payloads)
