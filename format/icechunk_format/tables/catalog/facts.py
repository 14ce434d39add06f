"""Opens the tables of a catalog, and describes their state: rows, snapshot and age."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from icechunk_format.errors import IcechunkError
from icechunk_format.options.location import location_of
from icechunk_format.options.read import ReadRequest
from icechunk_format.repository import RepositoryReader
from icechunk_format.tables.catalog.entries import Entry
from icechunk_format.tables.catalog.reading import Parse, parse_alone
from icechunk_format.tables.requested import (
    dataset_at,
    requested_snapshot,
    requested_table,
    selecting,
)
from icechunk_format.tables.row_pruning import rows_of_selection

_THREADS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """The state of a named table.

    Attributes
    ----------
    name
        Name of the view.
    path
        Path or URL of the repository, without credentials.
    branch
        The branch that the table follows, or None.
    tag
        The tag that it reads, or None.
    snapshot_id
        The snapshot that a query reads now; None with a problem.
    committed_at
        When that snapshot was committed.
    rows
        Number of rows; None if they would have to be counted.
    comment
        The description in the catalog.
    problem
        The reason for which the table cannot be read, or None.
    """

    name: str
    path: str
    branch: str | None = None
    tag: str | None = None
    snapshot_id: str | None = None
    committed_at: dt.datetime | None = None
    rows: int | None = None
    comment: str | None = None
    problem: str | None = None

    def age(self, now: dt.datetime) -> dt.timedelta | None:
        """Return the time since the snapshot was committed."""
        return None if self.committed_at is None else now - self.committed_at


def checked_entries(
    entries: Sequence[Entry], parse: Parse = parse_alone
) -> list[tuple[Entry, TableFacts]]:
    """Open the table of each entry, and of each of its tags; return them with their state.

    A table that cannot be read has its problem in its state.
    """
    with ThreadPoolExecutor(_THREADS) as threads:
        every = threads.map(lambda entry: list(_with_tags(entry, parse)), entries)
        return [pair for pairs in every for pair in pairs]


def _with_tags(entry: Entry, parse: Parse) -> Iterable[tuple[Entry, TableFacts]]:
    facts = facts_of(entry, parse)
    yield entry, facts
    if not entry.tags or facts.problem is not None:
        return
    tags = entry.tags
    if isinstance(tags, str):
        request = parse(entry.path, entry.options)
        tags = tuple(sorted(RepositoryReader.open(location_of(request)).tags()))
    for tag in tags:
        tagged = entry.at_tag(tag)
        yield tagged, facts_of(tagged, parse)


def facts_of(entry: Entry, parse: Parse = parse_alone) -> TableFacts:
    """Return the state of the table of an entry, or the problem that prevents a read."""
    try:
        request = parse(entry.path, entry.options)
        return _facts(entry, request)
    except IcechunkError as error:
        lines = (line.strip() for line in error.message.splitlines())
        problem = "; ".join(filter(None, lines))
        return TableFacts(name=entry.name, path=entry.path, comment=entry.comment, problem=problem)


def _facts(entry: Entry, request: ReadRequest) -> TableFacts:
    location = location_of(request)
    repository = RepositoryReader.open(location).as_read()
    snapshot_id = requested_snapshot(request, repository)
    rows = None
    if request.table is None:
        dataset = dataset_at(request, repository, snapshot_id)
        table = requested_table(request, dataset)
        if request.changes_since is None:
            selection = dataset.choose(table, **selecting(request, None))
            skips = request.missing_chunks == "skip"
            rows = rows_of_selection(dataset, table, selection, skip_missing=skips)
    flushed = repository.snapshot_info(snapshot_id).flushed_at
    follows = not (request.tag or request.snapshot)
    return TableFacts(
        name=entry.name,
        path=str(location) + (f"#{request.table}" if request.table else ""),
        branch=(request.branch or "main") if follows else None,
        tag=request.tag,
        snapshot_id=str(snapshot_id),
        committed_at=dt.datetime.fromtimestamp(flushed / 1e6, dt.UTC),
        rows=rows,
        comment=entry.comment,
    )
