"""Files of plain chunks that end within a chunk are cut to one grid, whatever their lengths."""

from __future__ import annotations

import itertools

import netCDF4
import numpy as np
import pytest
from helpers.archives.running import by_reference, statuses, virtualize
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.virtualizing.planning.copies import Copying

pytest.importorskip("virtualizarr")
pytestmark = [
    pytest.mark.needs_reference,
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]


def write(folder, lengths, *, chunk=10, zlib=False, only=None):
    start = 0
    for number, length in enumerate(lengths):
        if only is None or number in only:
            with netCDF4.Dataset(folder / f"{number}.nc", "w") as file:
                file.createDimension("time", None)
                file.createDimension("x", 3)
                time = file.createVariable("time", "f8", ("time",))
                time.units = "days since 2022-01-01"
                time[:] = np.arange(length) + start
                how = {"chunksizes": (chunk, 2), "zlib": zlib}
                values = file.createVariable("v", "f4", ("time", "x"), **how)
                values[:] = np.arange(start * 3, (start + length) * 3).reshape(-1, 3)
        start += length
    return np.arange(start * 3.0).reshape(-1, 3)


@pytest.mark.parametrize("copying", [None, Copying(which="mismatching")])
@pytest.mark.parametrize("chunk", [10, 16, 31])
@pytest.mark.parametrize("lengths", [*itertools.permutations((31, 28, 30)), (31, 28, 31), (30, 31)])
def test_plain_months_become_one_array(lengths, chunk, copying, tmp_path):
    expected = write(tmp_path, lengths, chunk=chunk)
    done = virtualize(f"{tmp_path}/*.nc", tmp_path / "repository", copying=copying)
    np.testing.assert_array_equal(by_reference(tmp_path / "repository")["v"], expected)
    assert done.files_copied == 0
    assert sum(row["references"] for row in done.report.to_pylist()) == done.references


def test_a_later_month_is_appended_to_split_chunks(tmp_path):
    expected = write(tmp_path, (31, 28, 31), only=(0, 1))
    virtualize(f"{tmp_path}/*.nc", tmp_path / "repository")
    write(tmp_path, (31, 28, 31), only=(2,))
    virtualize(f"{tmp_path}/*.nc", tmp_path / "repository")
    np.testing.assert_array_equal(by_reference(tmp_path / "repository")["v"], expected)


@pytest.mark.parametrize("lengths", [(31, 28, 31), (30, 30, 30)])
@pytest.mark.parametrize("patterns", [["*"], ["month[01].nc", "*"]])
def test_plain_months_of_members_become_one_array(lengths, patterns, tmp_path):
    """The dimension that the call adds is in front of the one along which chunks are split."""
    expected = []
    for member in range(2):
        folder = tmp_path / f"member{member}"
        folder.mkdir()
        expected.append(write(folder, lengths) + member * 1_000)
        for path in folder.iterdir():
            with netCDF4.Dataset(path, "a") as file:
                file["v"][:] = file["v"][:] + member * 1_000
            path.rename(folder / f"month{path.name}")
    for pattern in patterns:
        files, template = f"{tmp_path}/member*/{pattern}", "member{member:d}/month{time:d}.nc"
        done = virtualize(files, tmp_path / "repository", template=template)
        assert sum(row["references"] for row in done.report.to_pylist()) == done.references
    np.testing.assert_array_equal(by_reference(tmp_path / "repository")["v"], expected)


def test_a_chunk_without_values_is_cut_with_the_others(tmp_path):
    expected = write(tmp_path, (31, 28, 31)).astype("f4")
    with netCDF4.Dataset(tmp_path / "1.nc", "w") as file:
        file.createDimension("time", 28)
        file.createDimension("x", 3)
        time = file.createVariable("time", "f8", ("time",))
        time.units = "days since 2022-01-01"
        time[:] = np.arange(28) + 31
        values = file.createVariable("v", "f4", ("time", "x"), chunksizes=(10, 2))
        values[:10] = expected[31:41]
    expected[41:59] = np.nan
    done = virtualize(f"{tmp_path}/*.nc", tmp_path / "repository")
    found = by_reference(tmp_path / "repository", mask_and_scale=False)["v"].values
    found[found > 1e30] = np.nan
    np.testing.assert_array_equal(found, expected)
    assert sum(row["references"] for row in done.report.to_pylist()) == done.references


def test_plain_chunks_are_those_of_the_files_that_stay(tmp_path):
    """The header that most files have is of files that another array refuses."""
    for number, length in enumerate((6, 6, 2)):
        with netCDF4.Dataset(tmp_path / f"{number}.nc", "w") as file:
            file.createDimension("time", None)
            times = np.arange(length) + number * 6
            for name, how in {
                "time": {},
                "v": {"chunksizes": (length,)},
                "compressed": {"chunksizes": (4,), "zlib": True},
            }.items():
                file.createVariable(name, "f8", ("time",), **how)[:] = times
    done = virtualize(f"{tmp_path}/*.nc", tmp_path / "repository", on_mismatch="skip")
    assert list(statuses(done).values()) == ["refused", "refused", "taken"]
    found = by_reference(tmp_path / "repository")
    for name in ("time", "v", "compressed"):
        np.testing.assert_array_equal(found[name], [12, 13])


def test_compressed_months_are_refused_by_name_with_a_way_out(tmp_path):
    expected = write(tmp_path, (31, 28, 31), zlib=True)
    with raises(InvalidInputError) as caught:
        virtualize(f"{tmp_path}/*.nc", tmp_path / "refused")
    refused = [r for r in caught.value.facts["report"].to_pylist() if r["status"] == "refused"]
    assert {row["array"] for row in refused} == {"v"}
    assert all("copy='mismatching'" in row["difference"] for row in refused)
    copying = Copying(which="mismatching")
    virtualize(f"{tmp_path}/*.nc", tmp_path / "repository", copying=copying)
    np.testing.assert_array_equal(by_reference(tmp_path / "repository")["v"], expected)
