"""Files that no references can join are copied: the result is what xarray makes of all files."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
import xarray as xr
from helpers.archives import files as made
from helpers.archives.running import by_reference, concatenated, statuses, virtualize
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.repository import Repository
from icechunk_format.workflows.running import in_process
from icechunk_format.workflows.virtualizing.copying import plan
from icechunk_format.workflows.virtualizing.planning.copies import Copying

pytest.importorskip("virtualizarr")
pytestmark = [
    pytest.mark.needs_reference,
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
ALL, SOME = Copying(which="all"), Copying(which="mismatching")
FLOATS = Copying(which="all", encoding={"t2m": {"dtype": "float64"}})


def own_packing(path, number, *, format="NETCDF4", **how):
    """Write a file with a scale and an offset of its own, as the old CDS delivered ERA5."""
    data = made.dataset(number, **how)
    data["t2m"] = data["t2m"].where(data["t2m"] % 7 != 5)
    packing = {
        "dtype": "int16",
        "scale_factor": 0.05 + number / 100,
        "add_offset": 500.0 + 10 * number,
        "_FillValue": -32767 + number,
    }
    if format == "NETCDF4":
        packing |= {"zlib": True, "chunksizes": (2, made.ROWS, 4)}
        data.to_netcdf(path, engine="h5netcdf", encoding={"t2m": packing})
    else:
        how = {"t2m": packing, "time": {"dtype": "int32"}}
        data.to_netcdf(path, engine="scipy", format="NETCDF3_64BIT", encoding=how)


def classic(path, number):
    own_packing(path, number, format="NETCDF3_64BIT")


def months(path, number):
    """Write compressed files of different lengths, each one chunk along time."""
    lengths = (3, 2, 4, 1, 5)
    steps, start = lengths[number], sum(lengths[:number])
    data = made.dataset(number, steps=steps, start=start)
    how = {"t2m": {"chunksizes": (steps, made.ROWS, 3 + number), "zlib": True}}
    data.to_netcdf(path, engine="h5netcdf", encoding=how)


@pytest.mark.parametrize("make", [own_packing, classic, months], ids=["hdf", "netcdf3", "months"])
@pytest.mark.parametrize("chunks", [{}, {"time": 3, "x": 5}], ids=["their chunks", "other chunks"])
def test_copies_are_what_xarray_opens(make, chunks, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "_BOX_BYTES", 200)
    files = made.archive(tmp_path / "files", make, count=4)
    copying = Copying(which="all", chunks=chunks)
    done = virtualize([files[0], files[2]], tmp_path / "repository", copying=copying)
    assert set(statuses(done).values()) == {"copied"}
    assert (done.files_copied, done.references) == (2, 0)
    done = virtualize(files, tmp_path / "repository", copying=copying)  # one file comes between
    assert (done.files_added, done.files_skipped) == (2, 2)
    again = virtualize(files, tmp_path / "repository", copying=copying)
    assert (again.snapshot_id, again.files_added) == (done.snapshot_id, 0)
    expected = concatenated(files)
    for file in files:
        os.unlink(file)  # nothing refers to them
    found = by_reference(tmp_path / "repository")
    xr.testing.assert_equal(found, expected)
    assert found["t2m"].dtype == expected["t2m"].dtype
    assert found["t2m"].attrs == expected["t2m"].attrs
    assert not Repository.open(str(tmp_path / "repository")).config.virtual_chunk_containers


def test_only_files_that_do_not_fit_are_copied(tmp_path):
    def some(path, number):
        made.packed(path, number)
        if number in (1, 3):
            data = xr.load_dataset(path)
            how = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -1}
            how |= {"chunksizes": (1, made.ROWS, made.COLUMNS), "zlib": True}
            data.drop_encoding().to_netcdf(path, engine="h5netcdf", encoding={"t2m": how})

    files = made.archive(tmp_path / "files", some, count=5)
    with pytest.raises(InvalidInputError, match=r"1\.nc: array 't2m'.*copy='mismatching'"):
        virtualize(files, tmp_path / "repository")
    planned = virtualize(files, tmp_path / "repository", copying=SOME, dry_run=True)
    assert (planned.files_copied, planned.chunks) == (2, 0)
    assert not Repository.exists(str(tmp_path / "repository"))
    done = virtualize(files, tmp_path / "repository", copying=SOME)
    assert [statuses(done)[f"{n}.nc"] for n in range(5)] == [
        "taken", "copied", "taken", "copied", "taken",
    ]  # fmt: skip
    assert (done.files_copied, done.references, done.chunks) == (2, 12, 8)
    notes = {row["file"][-4:]: row["note"] for row in done.report.to_pylist()}
    assert "t2m is copied: the fill value of missing chunks is -1" in notes["1.nc"]
    xr.testing.assert_equal(by_reference(tmp_path / "repository"), concatenated(files))


def test_values_that_the_packing_cannot_hold_refuse_their_file(tmp_path):
    def some(path, number):
        made.packed(path, number)
        if number == 1:
            data = xr.load_dataset(path) * 1e6
            data.drop_encoding().to_netcdf(path, engine="h5netcdf")

    files = made.archive(tmp_path / "files", some, count=3)
    with pytest.raises(InvalidInputError, match=r"1\.nc: array '/t2m'.*does not fit when packed"):
        virtualize(files, tmp_path / "repository", copying=SOME)
    assert not Repository.exists(str(tmp_path / "repository"))
    done = virtualize(files, tmp_path / "repository", copying=SOME, on_mismatch="skip")
    assert statuses(done) == {"0.nc": "taken", "1.nc": "refused", "2.nc": "taken"}
    wide = Copying(which="all", encoding={"t2m": {"dtype": "float64"}})
    virtualize(files, tmp_path / "wide", copying=wide)
    xr.testing.assert_equal(by_reference(tmp_path / "wide"), concatenated(files))


def test_a_file_that_is_refused_while_it_is_copied_moves_no_known_file(tmp_path):
    def some(path, number):
        made.packed(path, number)
        if number == 2:
            data = xr.load_dataset(path) * 1e6
            data.drop_encoding().to_netcdf(path, engine="h5netcdf")

    files = made.archive(tmp_path / "files", some, count=3)
    virtualize(files[1:2], tmp_path / "repository", copying=SOME)
    done = virtualize(files, tmp_path / "repository", copying=SOME, on_mismatch="skip")
    assert statuses(done) == {"0.nc": "taken", "1.nc": "known", "2.nc": "refused"}
    xr.testing.assert_equal(by_reference(tmp_path / "repository"), concatenated(files[:2]))


def test_values_are_rounded_only_to_a_packing_that_is_given(tmp_path):
    files = made.archive(tmp_path / "files", own_packing, count=2)
    virtualize(files[:1], tmp_path / "repository", copying=ALL)
    found = by_reference(tmp_path / "repository", mask_and_scale=False)
    xr.testing.assert_equal(found, xr.open_dataset(files[0], mask_and_scale=False))
    with pytest.raises(InvalidInputError, match="would be rounded"):
        virtualize(files, tmp_path / "repository", copying=ALL)
    packing = {"dtype": "int16", "scale_factor": 0.05, "add_offset": 500.0, "_FillValue": -32767}
    copying = Copying(which="all", encoding={"t2m": packing})
    virtualize(files, tmp_path / "repository", copying=copying)
    found, expected = by_reference(tmp_path / "repository"), concatenated(files)
    np.testing.assert_allclose(found["t2m"], expected["t2m"], atol=0.025001)


def test_files_that_end_within_a_chunk_share_it(tmp_path):
    files = made.archive(tmp_path / "files", months, count=5)
    repository = tmp_path / "repository"
    model = Copying(which="mismatching", chunks={"time": 3, "x": 3})
    done = virtualize(files[:1], repository, copying=model)
    assert (done.references, done.chunks) == (3, 0)  # the first file fits
    for count in (2, 3, 5):
        done = virtualize(files[:count], repository, copying=SOME)
        xr.testing.assert_equal(by_reference(repository), concatenated(files[:count]))
    with raises(InvalidInputError, option="chunks", variable="t2m"):
        virtualize(files, repository, copying=Copying(which="all", chunks={"time": 4}))


def test_a_changed_file_is_copied_again(tmp_path):
    files = made.archive(tmp_path / "files", own_packing)
    virtualize(files, tmp_path / "repository", copying=FLOATS)
    data = xr.load_dataset(files[1])
    data["t2m"] = data["t2m"].isel(x=slice(0, 4)).reindex_like(data["t2m"])  # chunks of nothing
    how = {"dtype": "int16", "scale_factor": 0.1, "_FillValue": -9}
    data.drop_encoding().to_netcdf(files[1], engine="h5netcdf", encoding={"t2m": how})
    os.utime(files[1], (2_000_000_000, 2_000_000_000))
    done = virtualize(files, tmp_path / "repository", copying=FLOATS)
    assert statuses(done) == {"0.nc": "known", "1.nc": "refreshed", "2.nc": "known"}
    assert done.files_copied == 1
    xr.testing.assert_equal(by_reference(tmp_path / "repository"), concatenated(files))


def test_arguments_are_checked(tmp_path):
    files = made.archive(tmp_path / "files")
    for how, text in [
        ({"chunks": {"tim": 4}}, "time"),
        ({"chunks": {"time": -1}}, "time is -1"),
        ({"encoding": {"t2": {}}}, "t2m"),
        ({"encoding": {"t2m": {"dtipe": "f4"}}}, "dtype"),
        ({"encoding": {"t2m": {"dtype": "int16"}}}, "does not fit|no missing value|column"),
    ]:
        with pytest.raises(InvalidInputError, match=text):
            virtualize(files, tmp_path / "repository", copying=Copying(which="all", **how))
    assert not Repository.exists(str(tmp_path / "repository"))


def test_a_run_that_dies_leaves_the_branch_as_it_was(tmp_path):
    files = made.archive(tmp_path / "files", own_packing)
    virtualize(files[:1], tmp_path / "repository", copying=FLOATS)
    before = by_reference(tmp_path / "repository")

    class Killed(BaseException):
        pass

    for last in itertools.count(1):
        seen = itertools.count(1)

        def run(function, tasks):
            for task in tasks:
                if next(seen) == last:  # noqa: B023
                    raise Killed
                yield function(task)

        try:
            virtualize(files, tmp_path / "repository", copying=FLOATS, run=run)
        except Killed:
            xr.testing.assert_identical(by_reference(tmp_path / "repository"), before)
            continue
        break
    assert last > 3
    xr.testing.assert_equal(by_reference(tmp_path / "repository"), concatenated(files))


def test_calls_that_meet_both_land(tmp_path):
    files = made.archive(tmp_path / "files", own_packing, count=4)
    virtualize(files[:1], tmp_path / "repository", copying=FLOATS)
    waiting = [files[2:3]]

    def run(function, tasks):
        if function.func.__name__ == "run_copy" and waiting:
            virtualize(waiting.pop(), tmp_path / "repository", copying=FLOATS)
        return in_process(function, tasks)

    virtualize([files[1], files[3]], tmp_path / "repository", copying=FLOATS, run=run)
    xr.testing.assert_equal(by_reference(tmp_path / "repository"), concatenated(files))


@pytest.mark.parametrize("seed", range(24))
def test_random_archives_are_what_xarray_makes_of_them(seed, tmp_path, monkeypatch):
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(plan, "_BOX_BYTES", int(rng.integers(1, 400)))
    packings = [None, (1.0, 0.0), (0.5, 3.0), (0.25, -1.0)][: int(rng.integers(1, 5))]
    files, chosen, start = [], set(), 0
    for number in range(int(rng.integers(1, 6))):
        steps = int(rng.integers(1, 6))
        values = rng.integers(0, 100, (steps, 4)).astype("f8")
        values[rng.random(values.shape) < 0.2] = np.nan
        data = xr.Dataset(
            {"a": (("t", "x"), values), "b": ("t", np.arange(steps) + 0.5)},
            {"t": np.arange(start, start + steps), "x": [1.0, 2.0, 3.0, 5.0]},
        )
        chunks = (int(rng.integers(1, steps + 1)), int(rng.integers(1, 5)))
        how = {"chunksizes": chunks, "zlib": bool(rng.integers(2))}
        packing = packings[rng.integers(len(packings))]
        chosen.add(packing)
        if packing is not None:
            how |= {"dtype": "i2", "_FillValue": -999}
            how |= {"scale_factor": packing[0], "add_offset": packing[1]}
        files.append(str(tmp_path / f"{number}.nc"))
        data.to_netcdf(files[-1], engine="h5netcdf", encoding={"a": how})
        start += steps
    given = {dim: int(rng.integers(1, 6)) for dim in "tx" if rng.random() < 0.4}
    floats = {"a": {"dtype": "f8"}} if len(chosen) > 1 or rng.random() < 0.3 else {}
    which = "all" if rng.random() < 0.4 else "mismatching"
    copying = Copying(which=which, chunks=given, encoding=floats)
    order, taken = rng.permutation(len(files)).tolist(), []
    for part in np.array_split(order, rng.integers(1, 4)):
        taken += part.tolist()
        if len(part):
            where = tmp_path / "repository"
            virtualize([files[n] for n in taken], where, concat_dim="t", copying=copying)
            expected = concatenated([files[n] for n in sorted(taken)], "t")
            xr.testing.assert_equal(by_reference(where), expected)


@pytest.mark.parametrize("largest", [5, 40_000])
def test_wider_integers_are_copied_if_they_fit(tmp_path, largest):
    def some(path, number):
        data = made.dataset(number)
        values = np.full(data["t2m"].shape, 3, "i4" if number == 1 else "i2")
        if number == 1:
            values.flat[0] = largest
        how = {"chunksizes": (1, made.ROWS, made.COLUMNS), "zlib": True}
        data = data.drop_encoding().assign(t2m=(data["t2m"].dims, values))
        data.to_netcdf(path, engine="h5netcdf", encoding={"t2m": how})

    files = made.archive(tmp_path / "files", some, count=3)
    if largest > 2**15:
        with pytest.raises(InvalidInputError, match=r"1\.nc: .*do not fit into int16"):
            virtualize(files, tmp_path / "repository", copying=SOME)
        return
    done = virtualize(files, tmp_path / "repository", copying=SOME)
    assert statuses(done) == {"0.nc": "taken", "1.nc": "copied", "2.nc": "taken"}
    found = by_reference(tmp_path / "repository")
    assert found["t2m"].dtype == np.dtype("i2")
    np.testing.assert_array_equal(found["t2m"], concatenated(files)["t2m"])
