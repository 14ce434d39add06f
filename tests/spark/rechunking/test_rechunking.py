"""Rechunking on executors: direct and with a shuffle, in place and elsewhere."""

import numpy as np
import pytest
from helpers.raised import raises
from helpers.sessions.model import group_document

import icechunk_spark
from icechunk_format.errors import InvalidInputError
from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset
from icechunk_format.workflows.rechunking import plan
from icechunk_format.zarr.data_types import data_type_from_numpy
from icechunk_format.zarr.new_nodes import build_array_metadata


@pytest.fixture
def maps(tmp_path):
    """Return a repository of 60 maps, one chunk for each, and their values."""
    values = np.random.default_rng(2).random((60, 40, 50)).astype("f4")
    values[3] = np.nan
    repository = Repository.create(str(tmp_path / "maps"))
    session = repository.writable_session()
    session.create_group("/", group_document())
    metadata = build_array_metadata(
        shape=values.shape,
        data_type=data_type_from_numpy(values.dtype),
        chunk_shape=(1, 40, 50),
        fill_value=np.nan,
        dimension_names=["time", "y", "x"],
    )
    session.create_array(
        "/t",
        metadata.to_bytes(),
        shape=values.shape,
        num_chunks=(60, 1, 1),
        dimension_names=("time", "y", "x"),
    )
    codecs = metadata.chunk_codecs()
    for at in range(60):
        session.set_chunk("/t", [at, 0, 0], codecs.encode(values[at : at + 1]))
    session.commit("maps")
    return str(tmp_path / "maps"), values


def read(path):
    repository = Repository.open(path)
    dataset = open_dataset(repository, repository.resolve())
    return dataset.read("t"), dataset.variables["t"].metadata.grid.chunk_shape


@pytest.mark.each_spark
@pytest.mark.parametrize("kind", ["direct", "shuffled", "twice"])
def test_maps_become_series(spark, maps, kind, monkeypatch):
    path, values = maps
    if kind != "direct":
        monkeypatch.setattr(plan, "_LEAST_TASK_BYTES", 40_000 if kind == "shuffled" else 1)
        monkeypatch.setattr(plan, "_TINY_PIECE_BYTES", 0)
    if kind == "shuffled":
        monkeypatch.setattr(plan, "_LEAST_PIECE_BYTES", 0)
    sizes = {"time": -1, "y": 10, "x": 10}
    planned = icechunk_spark.rechunk(spark, path, chunks=sizes, memory="100k", dry_run=True)
    assert planned.commit is None
    assert "in chunks of 60 × 10 × 10" in repr(planned.target)
    assert read(path)[1] == (1, 40, 50)
    memory = {"direct": "512m", "shuffled": "100k", "twice": "16k"}[kind]
    done = icechunk_spark.rechunk(spark, path, chunks=sizes, memory=memory, message="series")
    assert (done.shuffled, done.direct) == ((0, 1) if kind == "direct" else (1, 0))
    assert done.rounds == {"direct": 0, "shuffled": 1, "twice": 2}[kind]
    after, chunks = read(path)
    assert after.tobytes() == values.tobytes()
    assert chunks == (60, 10, 10)
    assert done.commit.chunks == 20
    totals = done.commit.totals
    assert (totals.chunks_decoded, totals.chunks_encoded) == (60, 20)
    assert totals.tasks == done.tasks
    # Chunks are read and written once, beside metadata.
    assert totals.requests >= 60 + 20
    assert totals.bytes_read > 60 * values.itemsize
    assert totals.decode_seconds > 0
    repository = Repository.open(path)
    assert repository.snapshot_info(repository.resolve()).message == "series"


@pytest.mark.each_spark
def test_arrays_go_to_another_repository_once(spark, maps, tmp_path):
    path, values = maps
    target = str(tmp_path / "series")
    for _ in range(2):
        done = icechunk_spark.rechunk(
            spark, path, chunks={"time": 30}, to=target, txn_app_id="job", txn_version=1
        )
    assert done.commit.is_skipped
    after, chunks = read(target)
    assert after.tobytes() == values.tobytes()
    assert chunks == (30, 40, 50)
    assert read(path)[1] == (1, 40, 50)


@pytest.mark.each_spark
def test_unknown_options_are_named(spark, maps):
    with raises(InvalidInputError, option="variable"):
        icechunk_spark.rechunk(spark, maps[0], chunks={"time": 2}, variable="t")
