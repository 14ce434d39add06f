"""The table of a version, with the changes to a later one applied, is the table of that version."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest
from helpers.reference.sessions import ReferenceDriver, open_reference
from helpers.sessions.model import Model, OurDriver, RandomChanges, group_document
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.dataset.change_feed.plan import (
    CHANGE_COLUMNS,
    FeedRequest,
    plan_feed,
)
from icechunk_format.dataset.change_feed.run import run_feed
from icechunk_format.dataset.change_feed.steps import steps_to
from icechunk_format.dataset.dataset import open_dataset
from icechunk_format.dataset.reading.run import run_task
from icechunk_format.errors import NotFoundError
from icechunk_format.repository.repository import Repository
from icechunk_format.storage.location import Location

_numbers = itertools.count(1)
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
        for batch in run_task(plan.context, task):
            for row in batch.to_pylist():
                key = row_key(layout, row, table.dims)
                assert key not in found
                found[key] = row
    return found, table


def feed_rows(repository, older, newer, layout, options, plan_options, table, **step_options):
    """Return the rows of a feed, in order."""
    choices = dict(options)
    selection = {k: v for k, v in plan_options.items() if k in ("where", "sel", "isel")}
    request = FeedRequest(
        repository=repository,
        group="/",
        layout=layout,
        variables=choices.pop("variables", None),
        table_options=choices,
        selection=selection,
        plan_options={k: v for k, v in plan_options.items() if k not in selection},
    )
    steps = steps_to(repository, repository.snapshot_info(newer), older, **step_options)
    plan = plan_feed(request, steps, (*table.columns, *CHANGE_COLUMNS))
    return [
        row
        for task in plan.tasks
        for batch in run_feed(plan.context, task)
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
    location = f"memory://law-{next(_numbers)}" if both is None else str(both)
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


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(ALL_LAYOUTS), st.sampled_from([1, 2]), st.booleans())
def test_random_histories_of_ours(seed, kind, spec_version, by_snapshot):
    repository, versions = history(None, seed, 4, spec_version)
    layout, options, plan_options = kind
    assert_law(repository, versions, layout, options, plan_options)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_random_histories_of_both_libraries(tmp_path, spec_version):
    repository, versions = history(None, 11 + spec_version, 7, spec_version, both=tmp_path / "r")
    assert len(versions) > 4
    for layout, options, plan_options in ALL_LAYOUTS:
        assert_law(repository, versions, layout, options, plan_options)


# -- cells with labels ----------------------------------------------------------------------


class Grid:
    """A group of two variables over (x, y), whose labels are bytes."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.shape = {"x": 5, "y": 4}
        self.repository = Repository.create(Location(f"memory://cells-{next(_numbers)}"))
        session = self.repository.writable_session()
        session.create_group("/", group_document())
        self.session = session
        self.fill = {"a": 0, "b": 0}
        self.scale = {"a": None, "b": None}
        for name in ("a", "b", "x", "y"):
            self.create(name)
        for dim in "xy":
            self.relabel(dim)

    def dims(self, name):
        return ("x", "y") if name in "ab" else (name,)

    def document(self, name):
        dims = self.dims(name)
        attributes = {"n": self.random.random()}
        if self.scale.get(name):
            attributes["scale_factor"] = self.scale[name]
        return json.dumps(
            {
                "zarr_format": 3,
                "node_type": "array",
                "shape": [self.shape[d] for d in dims],
                "data_type": "uint8",
                "chunk_grid": {
                    "name": "regular",
                    "configuration": {"chunk_shape": [2 if name != "b" else 3 for _ in dims]},
                },
                "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
                "fill_value": self.fill.get(name, 0),
                "codecs": [{"name": "bytes"}],
                "dimension_names": dims,
                "attributes": attributes,
            }
        ).encode()

    def sizes(self, name):
        shape = tuple(self.shape[d] for d in self.dims(name))
        step = 2 if name != "b" else 3
        return {"shape": shape, "num_chunks": tuple(-(-n // step) for n in shape)}

    def create(self, name):
        names = {"dimension_names": self.dims(name)}
        self.session.create_array(f"/{name}", self.document(name), **self.sizes(name), **names)

    def relabel(self, dim, labels=None):
        size = self.shape[dim]
        labels = labels or self.random.sample(range(1, 200), size)
        chunks = [bytes(labels[i : i + 2]).ljust(2, b"\0") for i in range(0, size, 2)]
        self.session.set_chunks(f"/{dim}", [[i] for i in range(len(chunks))], chunks)
        self.labels = {**getattr(self, "labels", {}), dim: list(labels)}

    def set_chunks(self):
        name = self.random.choice("ab")
        step = 2 if name == "a" else 3
        coords = [self.random.randrange(n) for n in self.sizes(name)["num_chunks"]]
        self.session.set_chunks(f"/{name}", [coords], [self.random.randbytes(step * step)])

    def delete_chunks(self):
        name = self.random.choice("ab")
        coords = [self.random.randrange(n) for n in self.sizes(name)["num_chunks"]]
        self.session.delete_chunks(f"/{name}", [coords])

    def resize(self):
        dim = self.random.choice("xy")
        old = self.labels[dim]
        self.shape[dim] = size = max(1, self.shape[dim] + self.random.randint(-2, 3))
        for name in ("a", "b", dim):
            self.session.update_metadata(f"/{name}", self.document(name), **self.sizes(name))
        unused = [n for n in range(1, 200) if n not in old]
        fresh = self.random.sample(unused, max(0, size - len(old)))
        self.relabel(dim, [*old[:size], *fresh])

    def new_labels(self):
        dim = self.random.choice("xy")
        labels = list(self.labels[dim])
        if self.random.random() < 0.5:
            self.random.shuffle(labels)
        else:
            unused = [n for n in range(1, 256) if n not in labels]
            labels[self.random.randrange(len(labels))] = self.random.choice(unused)
        self.relabel(dim, labels)

    def recreate(self):
        self.session.delete("/b")
        self.create("b")

    def reinterpret(self):
        self.scale["a"] = self.random.choice([None, 2.0, 0.5])
        self.session.update_metadata("/a", self.document("a"), **self.sizes("a"))

    def attributes(self):
        self.session.update_metadata("/b", self.document("b"), **self.sizes("b"))

    def commit(self):
        self.session.commit("more")
        self.session = self.repository.writable_session()
        return self.repository.resolve()

    def change(self):
        kinds = [self.set_chunks] * 4 + [self.delete_chunks, self.resize, self.new_labels]
        kinds += [self.recreate, self.attributes]
        self.random.choice(kinds)()


CELLS = [{}, {"missing_chunks": "skip"}, {"isel": "x=1:4"}, {"where": "y > 60"}]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(CELLS), st.booleans())
def test_cells_known_by_labels(seed, plan_options, by_snapshot):
    grid = Grid(seed)
    versions = [grid.commit()]
    for _ in range(3):
        for _ in range(grid.random.randint(1, 4)):
            grid.change()
        if grid.session.has_changes:
            versions.append(grid.commit())
    options = {"variables": ("a", "b")}
    assert_law(grid.repository, versions, "cells", options, plan_options, by_snapshot)
