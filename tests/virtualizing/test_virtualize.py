"""Archives of all kinds become one dataset: as xarray and VirtualiZarr combine them."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from helpers.archives import files as made
from helpers.archives.running import (
    by_reference,
    by_virtualizarr,
    concatenated,
    statuses,
    virtualize,
)

from icechunk_format.dataset.dataset import open_dataset
from icechunk_format.repository.repository import Repository

pytest.importorskip("virtualizarr")
pytestmark = [
    pytest.mark.needs_reference,
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
]


@pytest.mark.parametrize("kind", made.KINDS)
def test_files_of_each_kind_become_what_xarray_makes_of_them(kind, tmp_path):
    files = made.archive(tmp_path / "files", made.KINDS[kind])
    done = virtualize([files[0], files[2], files[1]], tmp_path / "repository")
    assert done.files_added == 3
    expected = concatenated(files)
    found = by_reference(tmp_path / "repository")
    if kind == "gaps":  # NetCDF knows the fill value of HDF5 by no attribute
        expected["t2m"].encoding = {}
    xr.testing.assert_identical(found.drop_attrs(), expected.drop_attrs())
    assert found.attrs == expected.attrs
    assert found["y"].attrs == expected["y"].attrs
    assert found["t2m"].attrs == expected["t2m"].attrs


@pytest.mark.parametrize("kind", ["compressed", "packed", "contiguous", "netcdf3 records"])
def test_the_result_is_that_of_virtualizarr(kind, tmp_path):
    from virtualizarr.parsers import HDFParser, NetCDF3Parser

    files = made.archive(tmp_path / "files", made.KINDS[kind])
    virtualize(files, tmp_path / "ours")
    parser = NetCDF3Parser() if kind.startswith("netcdf3") else HDFParser()
    by_virtualizarr(files, tmp_path / "theirs", parser)
    ours, theirs = by_reference(tmp_path / "ours"), by_reference(tmp_path / "theirs")
    xr.testing.assert_identical(ours, theirs)


def test_our_own_reader_reads_the_files(tmp_path):
    files = made.archive(tmp_path / "files", made.packed)
    done = virtualize(files, tmp_path / "repository")
    path = str(tmp_path / "repository")
    dataset = open_dataset(
        Repository.open(path), done.snapshot_id, authorize=done.places
    )
    table = dataset.read(dataset.table()).to_pandas()
    expected = concatenated(files)["t2m"].to_dataframe().reset_index()
    np.testing.assert_array_equal(table["t2m"].to_numpy(), expected["t2m"].to_numpy())


def test_tomorrow_is_added_by_the_same_call(tmp_path):
    folder = tmp_path / "files"
    files = made.archive(folder, count=2)
    first = virtualize(f"{folder}/*.nc", tmp_path / "repository")
    same = virtualize(f"{folder}/*.nc", tmp_path / "repository")
    assert (same.snapshot_id, same.files_added) == (first.snapshot_id, 0)
    made.compressed(folder / "2.nc", 2)
    files.append(str(folder / "2.nc"))
    more = virtualize(f"{folder}/*.nc", tmp_path / "repository")
    assert statuses(more)["2.nc"] == "taken"
    xr.testing.assert_identical(by_reference(tmp_path / "repository"), concatenated(files))
