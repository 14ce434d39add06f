"""Commands that show rows, delete labels and cells, and make arrays of files."""

import json

import numpy as np
import pytest

from icechunk_format.command_line.views.documents import document_keys
from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset
from icechunk_format.zarr.data_types import data_type_from_numpy
from icechunk_format.zarr.new_nodes import build_array_metadata

from helpers.sessions.model import group_document  # isort: skip


@pytest.fixture
def weather(tmp_path):
    place = str(tmp_path / "weather")
    session = Repository.create(place).writable_session()
    session.create_group("/", group_document())
    for name, dims, values in (
        ("time", ["time"], np.arange(4) * 6),
        ("t2m", ["time", "x"], np.arange(12, dtype="f8").reshape(4, 3)),
    ):
        metadata = build_array_metadata(
            shape=values.shape,
            data_type=data_type_from_numpy(values.dtype),
            chunk_shape=values.shape,
            fill_value=np.nan if values.dtype.kind == "f" else 0,
            dimension_names=dims,
        )
        session.create_array(
            f"/{name}",
            metadata.to_bytes(),
            shape=values.shape,
            num_chunks=metadata.grid.num_chunks,
            dimension_names=dims,
        )
        chunk = metadata.chunk_codecs().encode(values)
        session.set_chunk(f"/{name}", [0] * values.ndim, chunk)
    session.commit("made")
    return place


def test_first_rows(command, weather):
    done = command("head", weather, "-n", "2", "--where", "time > 6")
    assert done.code == 0, done.err
    assert [line.split() for line in done.lines] == [
        ["time", "x", "t2m"],
        ["12", "0", "6.0"],
        ["12", "1", "7.0"],
    ]
    found = json.loads(command("head", weather, "--isel", "time=0;x=1", "--json").out)
    assert found["rows"] == [{"time": "0", "x": "1", "t2m": "1.0"}]
    assert len(json.loads(command("head", weather, "-n", "100", "--json").out)["rows"]) == 12


def test_labels_and_cells_are_deleted(command, weather):
    planned = command("delete", weather, "--where", "time = 6", "--dry-run", "--json")
    assert planned.code == 0, planned.err
    assert json.loads(planned.out)["labels"] == 1
    assert json.loads(planned.out).keys() == document_keys("delete").keys()
    assert json.loads(planned.out)["snapshot_id"] is None
    done = command("delete", weather, "--where", "time = 6", "--yes")
    assert done.code == 0, done.err
    assert done.lines[0] == "1 label of time, from /t2m, /time"
    done = command("delete", weather, "--sel", "time=12", "--isel", "x=0", "--yes", "--json")
    assert json.loads(done.out)["cells"] == {"/t2m": 1}
    repository = Repository.open(weather)
    values = open_dataset(repository, repository.resolve()).read("t2m")
    np.testing.assert_array_equal(values, [[0, 1, 2], [np.nan, 7, 8], [9, 10, 11]])


def test_deleting_asks(command, weather):
    before = Repository.open(weather).resolve()
    assert command("delete", weather, "--where", "time = 6").code != 0
    assert Repository.open(weather).resolve() == before


def test_files_become_a_dataset(command, tmp_path):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("virtualizarr")
    for day in range(2):
        labels = {"time": [day], "x": [0, 1]}
        xarray.Dataset({"t": (("time", "x"), [[1.0, 2.0]])}, labels).to_netcdf(
            tmp_path / f"{day}.nc", engine="h5netcdf"
        )
    target = str(tmp_path / "archive")
    done = command("virtualize", target, str(tmp_path / "*.nc"), "--concat-dim", "time", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["files"] == {"taken": 2}
    assert json.loads(done.out).keys() == document_keys("virtualize").keys()
    assert Repository.open(target).snapshot(Repository.open(target).resolve()).node("/t")
    copied = f"{target}-copied"
    how = ("--copy", "all", "--json")
    done = command("virtualize", copied, str(tmp_path / "*.nc"), "--concat-dim", "time", *how)
    assert (done.code, json.loads(done.out)["files_copied"]) == (0, 2), done.err
    repository = Repository.open(copied)
    dataset = open_dataset(repository, repository.resolve())
    np.testing.assert_array_equal(dataset.read("t"), [[1, 2], [1, 2]])


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("history", "log"),
        ("vacuum", "gc"),
        ("refs", "branch list"),
        ("tags", "tag list"),
        ("schema", "tree"),
        ("ls", "tree"),
        ("rm", "drop"),
        ("rebase", "merge"),
        ("fast-forward", "branch fast-forward"),
    ],
)
def test_words_of_other_tools(command, weather, word, ours):
    done = command(word, weather)
    assert done.code != 0
    assert f"'{ours}'" in done.err


def test_damage_points_to_verify(command, weather, tmp_path):
    (tmp_path / "weather" / "repo").write_bytes(b"damaged")
    done = command("log", weather)
    assert "icechunk-spark verify" in done.err
