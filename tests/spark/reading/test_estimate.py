"""An estimate before a read is what the read then does: chunks, bytes and requests."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.servers.http import misbehaving_server
from helpers.spark.repositories import add_array, commit, new_repository

import icechunk_spark
from icechunk_format.errors import InvalidInputError

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
    repository = new_repository(folder)
    values = np.random.default_rng(0).random((640, 50))

    def write(root):
        add_array(root, "y", np.arange(640, dtype="int8"), ["y"], chunks=(320,))
        add_array(root, "v", values, ["y", "x"], chunks=(100, 7))
        add_array(root, "w", values[:, 0].copy(), ["y"], chunks=(200,))

    commit(repository, "grid", write)
    with misbehaving_server() as server:
        for file in folder.rglob("*"):
            if file.is_file():
                server.objects[f"/grid/{file.relative_to(folder)}"] = file.read_bytes()
        yield server


@pytest.mark.each_spark
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_job_does_what_was_estimated(spark, served, options):
    path = f"{served.url}/grid"
    options = {"variables": ["v", "w"], **options}
    here = icechunk_spark.estimate(None, path, **options)
    assert icechunk_spark.estimate(spark, path, **options) == here
    frame = icechunk_spark.read(spark, path, **options)
    served.requests.clear()
    rows = frame.count()
    seen = [key for method, key in served.requests if method == "GET" and "/chunks/" in key]
    assert here.requests == len(seen) > 0
    # Chunks at the end of the array are small and stored inline.
    assert here.requests <= here.chunks <= here.requests + 2
    assert here.stored_bytes == sum(len(served.objects[key]) for key in seen)
    assert here.partitions == frame.rdd.getNumPartitions()
    assert rows == here.rows or "where" in options


def test_without_manifests_a_full_array_is_counted_as_well(served):
    path = f"{served.url}/grid"
    exact = icechunk_spark.estimate(None, path, variables=["v"])
    served.requests.clear()
    counted = icechunk_spark.estimate(None, path, variables=["v"], exact=False)
    assert not any("manifests/" in key for _, key in served.requests)
    assert (counted.chunks, counted.decoded_bytes) == (exact.chunks, exact.decoded_bytes)
    assert (counted.rows, counted.cells) == (exact.rows, exact.cells)
    assert counted.stored_bytes is None


@pytest.mark.parametrize("options", [{"table": "history"}, {"changes_since": "main"}])
def test_what_is_not_estimated_is_an_error(served, options):
    with pytest.raises(InvalidInputError) as caught:
        icechunk_spark.estimate(None, f"{served.url}/grid", **options)
    assert caught.value.facts["option"] in ("table", "changesSince")
