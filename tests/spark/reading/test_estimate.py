"""An estimate before a read is what the read then does: chunks, bytes and requests."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.builder import reference_repository
from helpers.raised import raises
from helpers.servers.http import misbehaving_server
from helpers.spark.repositories import add_array, commit

import icechunk_spark
from icechunk_format.errors import InvalidInputError
from icechunk_format.options.keywords import parse_arguments
from icechunk_format.repository.files import metadata_cache
from icechunk_format.tables import requested_inspection, resolve_snapshots, run_inspection

pytestmark = pytest.mark.needs_reference

OPTIONS = {
    "cells": {},
    "selection": {"isel": "y=10:400", "where": "v > 0.3"},
    "chunks": {"layout": "chunks"},
    "summary": {"layout": "summary"},
    "small tasks": {"rows_per_partition": 6000},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Serve a repository behind a server that counts requests; its labels are inline."""
    folder = tmp_path_factory.mktemp("estimate") / "grid"
    repository = reference_repository(folder)
    values = np.random.default_rng(0).random((640, 50))

    from zarr.core.sync import sync

    def write(root):
        add_array(root, "y", np.arange(640, dtype="int16"), ["y"], chunks=(160,))
        add_array(root, "v", values, ["y", "x"], chunks=(100, 7))
        add_array(root, "w", values[:, 0].copy(), ["y"], chunks=(200,))

    commit(repository, "grid", write)
    feed = reference_repository(folder.parent / "feed")
    feed.create_tag("before", snapshot_id=commit(feed, "grid", write))

    def change(root):
        root["v"][250:330, :20] = 1.0
        root["y"].resize((500,))
        root["v"].resize((500, 50))
        sync(root.store.delete("v/c/0/3"))

    commit(feed, "some cells, fewer rows, a chunk less", change)
    with misbehaving_server() as server:
        for file in folder.parent.rglob("*"):
            if file.is_file():
                key = file.relative_to(folder.parent)
                server.objects[f"/{key}"] = file.read_bytes()
        yield server


def parsed(path, table):
    return parse_arguments(path, {"table": table}, "read")


@pytest.mark.each_spark
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_job_does_what_was_estimated(spark, served, options):
    path = f"{served.url}/grid"
    options = {"variables": ["v", "w"], **options}
    here = icechunk_spark.estimate(None, path, **options)
    assert icechunk_spark.estimate(spark, path, **options) == here
    frame = icechunk_spark.read(spark, path, **options)
    served.requests.clear()
    rows = len(frame.collect())
    seen = [key for method, key in served.requests if method == "GET" and "/chunks/" in key]
    assert here.requests == len(seen) > 0
    # Chunks at the end of the array are small and stored inline.
    assert here.requests <= here.chunks <= here.requests + 2
    assert here.stored_bytes == sum(len(served.objects[key]) for key in seen)
    assert here.partitions == frame.rdd.getNumPartitions()
    assert rows == here.rows or "where" in options


@pytest.mark.parametrize("options", [{}, {"isel": "y=100:400"}])
def test_without_manifests_a_full_array_is_counted_as_well(served, options):
    path = f"{served.url}/grid"
    exact = icechunk_spark.estimate(None, path, variables=["v"], **options)
    served.requests.clear()
    counted = icechunk_spark.estimate(None, path, variables=["v"], exact=False, **options)
    assert not any("manifests/" in key for _, key in served.requests)
    assert (counted.chunks, counted.decoded_bytes) == (exact.chunks, exact.decoded_bytes)
    assert (counted.rows, counted.cells) == (exact.rows, exact.cells)
    assert counted.stored_bytes is None


@pytest.mark.each_spark
@pytest.mark.parametrize("table", ["snapshots", "history", "groups", "variables", "changes"])
def test_metadata_tables_are_counted_by_their_rows(spark, served, table):
    path = f"{served.url}/feed#{table}"
    here = icechunk_spark.estimate(None, path)
    assert icechunk_spark.estimate(spark, path) == here
    frame = icechunk_spark.read(spark, path)
    assert here.rows == frame.count() > 0
    assert here.partitions == frame.rdd.getNumPartitions()
    assert (here.chunks, here.cells) == (0, 0)


def test_tables_of_chunks_open_the_manifests_that_were_estimated(served):
    path = f"{served.url}/feed"
    for exact in (True, False):
        here = icechunk_spark.estimate(None, path, table="chunks", exact=exact)
        plan = requested_inspection(request := parsed(path, "chunks"), resolve_snapshots(request))
        metadata_cache().clear()
        served.requests.clear()
        rows = sum(b.num_rows for task in plan.tasks for b in run_inspection(plan.context, task))
        seen = [key for method, key in served.requests if method == "GET" and "manifests/" in key]
        assert here.requests == len(seen) > 0
        assert here.stored_bytes == sum(len(served.objects[key]) for key in seen)
        assert here.rows == rows
    variables = icechunk_spark.estimate(None, path, table="variables")
    assert variables.requests == here.requests


FEEDS = {
    "cells": {},
    "kept chunks alone": {"missing_chunks": "skip"},
    "chunks": {"layout": "chunks"},
    "stored chunks": {"layout": "chunks", "decoded": False},
    "references": {"layout": "refs"},
}


@pytest.mark.each_spark
@pytest.mark.parametrize("options", FEEDS.values(), ids=FEEDS)
def test_a_feed_does_what_was_estimated(spark, served, options):
    path = f"{served.url}/feed"
    options = {"changes_since": "before", "change_columns": True, "variables": ["v"], **options}
    here = icechunk_spark.estimate(None, path, **options)
    assert icechunk_spark.estimate(spark, path, **options) == here
    frame = icechunk_spark.read(spark, path, **options)
    served.requests.clear()
    rows = frame.collect()
    seen = [key for method, key in served.requests if method == "GET" and "/chunks/" in key]
    assert here.rows == len(rows)
    assert len({row["_change"] for row in rows}) == 2
    assert here.requests == len(seen)
    assert here.stored_bytes == sum(len(served.objects[key]) for key in seen)
    assert here.partitions == frame.rdd.getNumPartitions()


def test_a_feed_is_not_estimated_without_manifests(served):
    with raises(InvalidInputError, option="exact"):
        icechunk_spark.estimate(
            None, f"{served.url}/feed", changes_since="before", variables=["v"], exact=False
        )
