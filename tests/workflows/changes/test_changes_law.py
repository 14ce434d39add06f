"""The table of a version, with the changes to a later one applied, is the table of that version."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.builder import new_place
from helpers.examples import by_day
from helpers.grids.changing_grid import ChangingGrid
from helpers.reference.sessions import ReferenceDriver, open_reference
from helpers.sessions.model import Model, OurDriver, RandomChanges
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import NotFoundError
from icechunk_format.options.read import ReadRequest
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location
from icechunk_format.tables import open_dataset
from icechunk_format.tables.reading import run_scan
from icechunk_format.workflows.changes import run_changes, steps_to
from icechunk_format.workflows.changes.plan import CHANGE_COLUMNS, ChangePlanner

KEYS = {"chunks": ("array", "chunk"), "refs": ("array", "chunk")}


class ValidChanges(RandomChanges):
    """Random changes whose chunks can be decoded, of arrays in the root group alone."""

    def set_chunks(self, driver):
        path = self._some_array()
        node = None if path is None else self.model.nodes[path]
        coords = [] if node is None else self._some_coords(node)
        if coords:
            size = int(np.prod(node.chunk_shape))
            payloads = [self.random.randbytes(size) for _ in coords]
            node.chunks.update(zip(coords, payloads, strict=True))
            driver.set_chunks(path, coords, payloads)


def row_key(layout, row, dims):
    names = KEYS.get(layout) or dims
    return tuple(str(row[name]) for name in names)


def rows_at(repository, version, layout, options, plan_options, group="/"):
    """Return the rows of a table by their keys, and the table; nothing where it is not there."""
    try:
        dataset = open_dataset(repository, version, group)
        if not dataset.variables:
            return {}, None
        table = dataset.table(layout, **options)
    except NotFoundError:
        return {}, None
    plan = dataset.plan(table, **plan_options)
    found = {}
    for task in plan.tasks:
        for batch in run_scan(plan.context, task):
            for row in batch.to_pylist():
                key = row_key(layout, row, table.dims)
                assert key not in found
                found[key] = row
    return found, table


def feed_rows(repository, older, newer, layout, options, plan_options, table, **step_options):
    """Return the rows of a feed, in order."""
    choices = {**options, **plan_options, "change_columns": True}
    read = ReadRequest(path="", group="/", layout=layout, **choices)
    columns = (*table.columns, *CHANGE_COLUMNS)
    steps = steps_to(repository, repository.snapshot_info(newer), older, **step_options)
    plan = ChangePlanner(repository=repository, read=read, columns=columns).plan(steps)
    return [
        row
        for task in plan.tasks
        for batch in run_changes(plan.context, task)
        for row in batch.to_pylist()
    ]


def applied(rows, changes, layout, dims, names):
    found = dict(rows)
    times = [row["_committed_at"] for row in changes]
    assert times == sorted(times)
    for snapshot, group in itertools.groupby(changes, key=lambda row: row["_snapshot_id"]):
        assert snapshot
        group = list(group)
        kinds = [row["_change"] for row in group]
        assert kinds == sorted(kinds)  # what is deleted comes before what is written
        written = [row_key(layout, r, dims) for r in group if r["_change"] == "written"]
        assert len(written) == len(set(written))
        for row in group:
            key = row_key(layout, row, dims)
            if row["_change"] == "deleted":
                found.pop(key, None)
            else:
                found[key] = {name: row[name] for name in names}
    return found


def assert_law(repository, versions, layout, options, plan_options, by_snapshot=False):
    tables = {v: rows_at(repository, v, layout, options, plan_options) for v in versions}
    for older, newer in itertools.combinations(versions, 2):
        before, _ = tables[older]
        after, table = tables[newer]
        if table is None:
            continue
        changes = feed_rows(
            repository, older, newer, layout, options, plan_options, table, by_snapshot=by_snapshot
        )
        made = applied(before, changes, layout, table.dims, table.names)
        assert made == after


def history(repository_of, seed, commits, spec_version=2, both=None):
    """Make a history of random changes; return our repository and its versions."""
    location = new_place() if both is None else str(both)
    repository = Repository.create(Location(location), spec_version=spec_version)
    changes = ValidChanges(Model(), seed)
    versions = []
    for number in range(commits):
        if both is not None and number % 2:
            session = open_reference(both).writable_session("main")
            driver = ReferenceDriver(session)
        else:
            session = repository.writable_session()
            driver = OurDriver(session)
        changes.session(driver, 6)
        try:
            session.commit(f"commit {number}")
        except Exception as error:
            if "nothing" not in str(error).lower() and "no changes" not in str(error).lower():
                raise
            continue
        versions.append(repository.resolve())
    return repository, list(dict.fromkeys(versions))


ALL_LAYOUTS = [
    ("refs", {}, {}),
    ("chunks", {}, {}),
    ("chunks", {"decoded": False}, {}),
    ("chunks", {}, {"missing_chunks": "skip"}),
]


@settings(max_examples=by_day(8), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(ALL_LAYOUTS), st.sampled_from([1, 2]), st.booleans())
def test_random_histories_of_ours(seed, kind, spec_version, by_snapshot):
    repository, versions = history(None, seed, 4, spec_version)
    layout, options, plan_options = kind
    assert_law(repository, versions, layout, options, plan_options, by_snapshot)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_random_histories_of_both_libraries(tmp_path, spec_version):
    repository, versions = history(None, 11 + spec_version, 7, spec_version, both=tmp_path / "r")
    assert len(versions) > 4
    for layout, options, plan_options in ALL_LAYOUTS:
        assert_law(repository, versions, layout, options, plan_options)


@settings(max_examples=by_day(15), deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(
        [
            ("cells", {"variables": ("a", "b")}),
            ("cells", {"variables": ("b",), "coords": ("a",)}),
            ("cells", {"variables": ("a", "b"), "decode_cf": False}),
            ("chunks", {}),
            ("chunks", {"variables": ("a",), "decoded": False}),
            ("refs", {}),
        ]
    ),
    st.sampled_from(
        [{}, {"isel": "x=1:4"}, {"where": "y > 60"}, {"isel": "y=0:3:2", "where": "x < 99"}]
    ),
    st.sampled_from(["fill", "skip"]),
    st.sampled_from([{}, {"rows_per_partition": 3, "read_ahead_bytes": 1}]),
    st.booleans(),
)
def test_every_option_of_reading(seed, table, selection, missing_chunks, bounds, by_snapshot):
    grid = ChangingGrid(seed)
    versions = [grid.commit()]
    for _ in range(3):
        for _ in range(grid.random.randint(1, 4)):
            grid.change()
        if grid.session.has_changes:
            versions.append(grid.commit())
    layout, options = table
    if layout != "cells":
        selection = {name: given for name, given in selection.items() if name == "isel"}
    plan_options = {**selection, **bounds, "missing_chunks": missing_chunks}
    assert_law(grid.repository, versions, layout, options, plan_options, by_snapshot)


@pytest.mark.parametrize("metadata", [ChangingGrid.reinterpret, ChangingGrid.attributes])
def test_chunks_deleted_beside_new_metadata_are_deleted_rows(metadata):
    grid = ChangingGrid(1)
    grid.session.set_chunks("/a", [[0, 0], [1, 1]], [b"abcd"] * 2)
    grid.scale["a"] = 4.0
    grid.reinterpret()
    versions = [grid.commit()]
    grid.session.delete_chunks("/a", [[0, 0]])
    metadata(grid)
    versions.append(grid.commit())
    skip = {"missing_chunks": "skip"}
    assert_law(grid.repository, versions, "cells", {"variables": ("a", "b")}, skip)
