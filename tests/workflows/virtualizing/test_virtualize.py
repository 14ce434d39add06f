"""Archives of all kinds become one dataset: as xarray and VirtualiZarr combine them."""

from __future__ import annotations

import os
from pathlib import Path

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
from helpers.arrays.real_data import FOLDER

from icechunk_format.errors import InvalidInputError
from icechunk_format.repository import Repository
from icechunk_format.storage.options import VirtualAccess
from icechunk_format.tables import open_dataset

pytest.importorskip("virtualizarr")
pytestmark = [
    pytest.mark.needs_reference,
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
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


@pytest.mark.parametrize("kind", made.KINDS)
def test_the_result_is_what_xarray_opens_as_many_files(kind, tmp_path):
    pytest.importorskip("dask")
    files = made.archive(tmp_path / "files", made.KINDS[kind])
    virtualize([files[2], files[0], files[1]], tmp_path / "repository")
    how = {"mask_and_scale": False} if kind == "gaps" else {}  # HDF5 names no missing value
    with xr.open_mfdataset(
        [files[1], files[2], files[0]],
        engine="scipy" if kind.startswith("netcdf3") else "h5netcdf",
        data_vars="minimal",
        coords="minimal",
        compat="override",
        combine="by_coords",
        **how,
    ) as opened:
        expected = opened.load()
    xr.testing.assert_equal(by_reference(tmp_path / "repository", **how), expected)


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.nc")), ids=lambda file: file.stem)
def test_a_real_file_alone_is_what_xarray_opens(file, tmp_path):
    done = virtualize(str(file), tmp_path / "repository", concat_dim=(), on_mismatch="skip")
    expected = xr.open_dataset(file).load()
    assert set(statuses(done).values()) == {"taken"}
    xr.testing.assert_equal(by_reference(tmp_path / "repository"), expected)


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
    repository = Repository.open(str(tmp_path / "repository"))
    dataset = open_dataset(repository, done.snapshot_id, access=VirtualAccess(done.places))
    expected = concatenated(files, mask_and_scale=False)["t2m"].values
    np.testing.assert_array_equal(dataset.read("t2m"), expected)


def test_tomorrow_is_added_by_the_same_call(tmp_path):
    folder = tmp_path / "files"
    files = made.archive(folder, count=2)
    first = virtualize(f"{folder}/*.nc", tmp_path / "repository")
    same = virtualize(f"{folder}/*.nc", tmp_path / "repository")
    assert (same.snapshot_id, same.files_added) == (first.snapshot_id, 0)
    assert same.places == first.places
    made.compressed(folder / "2.nc", 2)
    files.append(str(folder / "2.nc"))
    more = virtualize(f"{folder}/*.nc", tmp_path / "repository")
    assert statuses(more)["2.nc"] == "taken"
    xr.testing.assert_identical(by_reference(tmp_path / "repository"), concatenated(files))


def test_attributes_of_single_files_stay_when_an_array_grows(tmp_path):
    def file(path, number):
        data = made.dataset(number)
        data["t2m"].attrs["history"] = f"made as file {number}"
        data.to_netcdf(path, engine="h5netcdf", encoding=made.COMPRESSED)

    files = made.archive(tmp_path / "files", file)
    virtualize(files[:2], tmp_path / "repository")
    virtualize(files, tmp_path / "repository")
    found = by_reference(tmp_path / "repository")
    assert found["t2m"].attrs["history"] == "made as file 0"
    assert found.sizes["time"] == 3 * made.STEPS


def test_stored_values_along_a_later_axis_are_added(tmp_path):
    def file(path, number):
        data = made.dataset(number)
        values = np.add.outer(np.arange(3), data["time"].values.astype("i4"))
        data["lag"] = (("station", "time"), values.astype("i4"))
        data.to_netcdf(path, engine="h5netcdf", encoding=made.COMPRESSED)

    files = made.archive(tmp_path / "files", file)
    loadable = ("time", "lag")
    virtualize(files[:2], tmp_path / "repository", loadable=loadable)
    virtualize(files, tmp_path / "repository", loadable=loadable)
    found = by_reference(tmp_path / "repository")["lag"].values
    np.testing.assert_array_equal(found, np.add.outer(np.arange(3), np.arange(3 * made.STEPS)))


def test_files_that_come_late_are_put_where_they_belong(tmp_path):
    files = made.archive(tmp_path / "files", count=5)
    virtualize([files[1], files[3]], tmp_path / "repository")
    virtualize([files[0], files[2], files[4]], tmp_path / "repository")
    found = by_reference(tmp_path / "repository")
    xr.testing.assert_identical(found.drop_attrs(), concatenated(files).drop_attrs())


def test_a_changed_file_is_referenced_anew(tmp_path):
    files = made.archive(tmp_path / "files")
    virtualize(files, tmp_path / "repository")
    changed = made.dataset(1)
    changed["t2m"] = changed["t2m"] * 2
    changed.to_netcdf(files[1], engine="h5netcdf", encoding=made.COMPRESSED)
    os.utime(files[1], (2e9, 2e9))
    done = virtualize(files, tmp_path / "repository")
    assert statuses(done) == {"0.nc": "known", "1.nc": "refreshed", "2.nc": "known"}
    xr.testing.assert_identical(by_reference(tmp_path / "repository"), concatenated(files))


def test_a_changed_file_with_other_coordinates_is_refused(tmp_path):
    files = made.archive(tmp_path / "files")
    virtualize(files, tmp_path / "repository")
    made.compressed(Path(files[1]), 7)
    os.utime(files[1], (2e9, 2e9))
    with pytest.raises(InvalidInputError, match="covers other coordinates than before"):
        virtualize(files, tmp_path / "repository")


def test_times_in_other_units_are_converted(tmp_path):
    def own_units(path, number):
        data = made.dataset(number)
        hours = data["time"].values
        units = {"units": f"minutes since 2024-07-01 {hours[0]:02}:00"}
        data = data.assign_coords(time=("time", (hours - hours[0]) * 60, units))
        data.to_netcdf(path, engine="h5netcdf", encoding=made.COMPRESSED)

    files = made.archive(tmp_path / "files", own_units)
    virtualize(files, tmp_path / "repository")
    found, expected = by_reference(tmp_path / "repository"), concatenated(files)
    np.testing.assert_array_equal(found["time"].values, expected["time"].values)
    np.testing.assert_array_equal(found["t2m"].values, expected["t2m"].values)
    with pytest.raises(InvalidInputError, match="name it in loadable= to convert times"):
        virtualize(files, tmp_path / "other", loadable=())


def test_names_place_files_along_two_dimensions(tmp_path):
    expected = {}
    for member in ("a", "b"):
        files = made.archive(tmp_path / member)
        expected[member] = concatenated(files)
        for number, file in enumerate(files):
            Path(file).rename(tmp_path / member / f"2024070{number + 1}.nc")
    repository = tmp_path / "repository"
    template = "{member}/{time:%Y%m%d}.nc"
    virtualize(f"{tmp_path}/?/2024070[12].nc", repository, template=template)
    found = by_reference(repository)
    assert found["t2m"].dims == ("member", *made.DIMS)
    assert found["member"].values.tolist() == ["a", "b"]
    xr.testing.assert_equal(found.sel(member="b", drop=True), expected["b"].isel(time=slice(8)))
    virtualize(f"{tmp_path}/?/*.nc", repository, template=template)
    xr.testing.assert_equal(by_reference(repository).sel(member="a", drop=True), expected["a"])


def test_groups_of_a_file_become_groups(tmp_path):
    def nested(path, number):
        made.compressed(path, number)
        made.dataset(number).rename(t2m="rain").to_netcdf(
            path, engine="h5netcdf", group="forecast/day", mode="a"
        )

    files = made.archive(tmp_path / "files", nested)
    virtualize(files, tmp_path / "repository", options={"group": "all"})
    expected = concatenated(files, group="forecast/day")
    found = by_reference(tmp_path / "repository", "all/forecast/day")
    xr.testing.assert_identical(found.drop_attrs(), expected.drop_attrs())


def test_files_without_the_dimension_get_it_from_their_scalar_time(tmp_path):
    def snapshot(path, number):
        data = made.dataset(number).isel(time=0).assign(crs=((), 0, {"name": "sphere"}))
        data = data.assign_coords(lead=number * 2.0, lat=(("y", "x"), np.ones((6, 8))))
        data["t2m"].attrs["grid_mapping"] = "crs"
        data.to_netcdf(path, engine="h5netcdf")

    files = made.archive(tmp_path / "files", snapshot)
    virtualize(files, tmp_path / "repository")
    found, expected = by_reference(tmp_path / "repository"), concatenated(files)
    assert found["t2m"].dims == made.DIMS
    assert found["crs"].dims == ()
    assert found["lat"].dims == ("y", "x")
    np.testing.assert_array_equal(found["t2m"].values, expected["t2m"].values)
    np.testing.assert_array_equal(found["time"].values, expected["time"].values)
    assert found["lead"].values.tolist() == [0.0, 2.0, 4.0]
    virtualize([*files, *made.archive(tmp_path / "more", lambda p, n: snapshot(p, n + 3), 1)],
               tmp_path / "repository")  # fmt: skip
    assert by_reference(tmp_path / "repository")["lead"].values.tolist() == [0.0, 2.0, 4.0, 6.0]


def test_two_real_scenarios_become_one_dataset(tmp_path):
    done = virtualize(
        f"{FOLDER}/*_north_america.nc",
        tmp_path / "repository",
        template="{scenario}_north_america.nc",
    )
    assert done.files_added == 2
    found = by_reference(tmp_path / "repository")
    for scenario in ("A1B", "E1"):
        expected = xr.open_dataset(FOLDER / f"{scenario}_north_america.nc").load()
        own = found.sel(scenario=scenario, drop=True)
        for name in ("air_temperature", "time", "latitude", "time_bnds", "forecast_period"):
            np.testing.assert_array_equal(own[name].values, expected[name].values)


def test_real_months_of_an_ocean_become_one_dataset(tmp_path):
    files = sorted(map(str, (FOLDER / "NEMO").glob("*.nc")))
    # The coordinate of all of them is 0, so that only their names tell the order.
    with pytest.raises(InvalidInputError, match=r"same keys as another file .* template="):
        virtualize(files, tmp_path / "refused", concat_dim="time_counter")
    template = "nemo_1m_{time_counter:%Y%m%d}-*_grid-T.nc"
    virtualize(files, tmp_path / "repository", template=template)
    expected = concatenated(files, "time_counter")
    found = by_reference(tmp_path / "repository")
    assert set(found.variables) == set(expected.variables)
    for name in expected.variables:
        np.testing.assert_array_equal(found[name].values, expected[name].values)


def test_a_write_is_done_once_by_its_number(tmp_path):
    files = made.archive(tmp_path / "files")
    options = {"txn_app_id": "nightly", "txn_version": 1}
    first = virtualize(files[:2], tmp_path / "repository", options=options)
    again = virtualize(files, tmp_path / "repository", options=options)
    assert (again.snapshot_id, again.files_added) == (first.snapshot_id, 0)


def test_nothing_stays_staged_and_containers_need_consent(tmp_path):
    files = made.archive(tmp_path / "files")
    with pytest.raises(InvalidInputError, match=r"no virtual chunk container .* covers"):
        virtualize(files, tmp_path / "repository", containers=False)
    assert not (tmp_path / "repository").exists()
    virtualize(files, tmp_path / "repository")
    assert not list((tmp_path / "repository").glob("staging/**/*.arrow"))
    virtualize(files, tmp_path / "repository", containers=False)
