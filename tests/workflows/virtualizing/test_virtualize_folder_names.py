"""Both libraries read folders whose names are encoded in URLs, or the archive is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers.archives import files as made
from helpers.archives.running import by_reference, concatenated, virtualize
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.repository import Repository
from icechunk_format.storage.options import VirtualAccess
from icechunk_format.tables import open_dataset

pytest.importorskip("virtualizarr")
pytestmark = pytest.mark.needs_reference

ODD = ["a b", "50%", "Jürgen", "日本", "it's (1)", "a;b&c", 'a"b<c>', "a,b+c=d~e@f:g"]


def assert_readable(repository, done, files):
    xr.testing.assert_identical(by_reference(repository), concatenated(files))
    ours = Repository.open(str(repository))
    read = open_dataset(ours, done.snapshot_id, access=VirtualAccess(done.places)).read("t2m")
    np.testing.assert_array_equal(read, concatenated(files)["t2m"].values)
    containers = {item.url_prefix for item in ours.config.virtual_chunk_containers}
    assert set(done.places) <= containers


@pytest.mark.parametrize("name", ODD)
def test_both_libraries_read_files_below_a_folder_with_such_a_name(name, tmp_path):
    files = made.archive(tmp_path / name, count=2)
    done = virtualize(files[:1], tmp_path / "repository")
    assert_readable(tmp_path / "repository", done, files[:1])
    done = virtualize(files, tmp_path / "repository")
    assert done.places == (f"file://{tmp_path}/{name}/",)
    assert_readable(tmp_path / "repository", done, files)


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%20b"])
def test_a_folder_that_readers_would_not_find_is_refused_unless_one_above_is_named(name, tmp_path):
    files = made.archive(tmp_path / name, count=2)
    with raises(InvalidInputError, place=f"file://{tmp_path}/{name}/"):
        virtualize(files, tmp_path / "repository")
    assert not (tmp_path / "repository").exists()
    repository = Repository.create(str(tmp_path / "repository"))
    store = {"local_file_system": str(tmp_path)}
    prefix = f"file://{tmp_path}/"
    repository.update_config({"virtual_chunk_containers": {prefix: {"store": store}}})
    done = virtualize(files, tmp_path / "repository")
    assert_readable(tmp_path / "repository", done, files)


@pytest.mark.parametrize("name", ["0.nc ", " 0.nc", "0 .nc"])
def test_blanks_at_the_ends_of_names_are_kept(name, tmp_path):
    folder = tmp_path / "a "
    [file] = made.archive(folder, count=1)
    (folder / name).write_bytes(Path(file).read_bytes())
    Path(file).unlink()
    for number, files in enumerate([[f"{folder}/{name}"], f"{folder}/*"]):
        done = virtualize(files, tmp_path / str(number))
        assert done.places == (f"file://{folder}/",)
        assert_readable(tmp_path / str(number), done, [f"{folder}/{name}"])
