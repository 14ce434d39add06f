"""Files lie where their names or coordinates say: dates, numbers and texts stay what they are."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from helpers.archives import files as made
from helpers.archives.running import by_reference, concatenated, statuses, virtualize
from helpers.raised import raises

from icechunk_format.errors import FormatError, InvalidInputError
from icechunk_format.workflows.virtualizing.planning.arrange import Along, FileSpan, arrange
from icechunk_format.workflows.virtualizing.scanning.source_files import SourceFile

pytest.importorskip("virtualizarr")
pytestmark = pytest.mark.needs_reference


def runs(folder, names):
    for number, file in enumerate(made.archive(folder / "files", count=1) * len(names)):
        shutil.copy(file, folder / f"{names[number]}.nc")
    return [str(folder / f"{name}.nc") for name in names]


def test_a_number_in_names_is_a_number_however_large(tmp_path):
    numbers = [20240701000000, 7, 20240702000000]
    template = "{run:d}.nc"
    files = runs(tmp_path, numbers)
    virtualize(files[:2], tmp_path / "repository", template=template)
    virtualize(files, tmp_path / "repository", template=template)
    found = by_reference(tmp_path / "repository")["run"]
    assert found.dtype == np.int64
    assert found.values.tolist() == sorted(numbers)
    [huge] = runs(tmp_path, [2**63])
    with raises(InvalidInputError, match="does not fit 64 bits", refused=1):
        virtualize(huge, tmp_path / "repository", template=template)


@pytest.mark.parametrize("keys", [(0, 0), (0, 2)])
def test_a_record_whose_files_overlap_is_damaged(keys):
    spans = [
        FileSpan(
            file=SourceFile(url=f"file:///{number}.nc"),
            first=(key,),
            last=(key + 3,),
            lengths=Along((4,)),
            starts=Along((4 * number,)),
        )
        for number, key in enumerate(keys)
    ]
    with pytest.raises(FormatError, match=r"1\.nc"):
        arrange(spans, 1)


@pytest.mark.parametrize("days", [["19691231", "19700101", "19700102"], ["15001225", "15001226"]])
def test_a_date_in_names_is_a_date_however_near_to_1970(days, tmp_path):
    files = runs(tmp_path, days)
    virtualize(files[:1], tmp_path / "repository", template="{run:%Y%m%d}.nc")
    virtualize(files, tmp_path / "repository", template="{run:%Y%m%d}.nc")
    found = by_reference(tmp_path / "repository", decode_times=False)["run"]
    assert found.attrs == {
        "units": "microseconds since 1970-01-01",
        "calendar": "proleptic_gregorian",
    }
    expected = [f"{day[:4]}-{day[4:6]}-{day[6:]}" for day in days]
    np.testing.assert_array_equal(found.values.astype("M8[us]"), np.array(expected, "M8[us]"))


@pytest.mark.parametrize("first", ["{run:%Y%m%d}.nc", "{run:d}.nc", "{run}.nc"])
@pytest.mark.parametrize("second", ["{run:%Y%m%d}.nc", "{run:d}.nc", "{run}.nc"])
def test_later_files_need_the_kind_of_template_that_the_first_had(first, second, tmp_path):
    files = runs(tmp_path, ["20240701", "20240702"])
    virtualize(files[:1], tmp_path / "repository", template=first)
    if first == second:
        virtualize(files, tmp_path / "repository", template=second)
        assert by_reference(tmp_path / "repository").sizes["run"] == 2
        return
    with pytest.raises(InvalidInputError, match="template="):
        virtualize(files, tmp_path / "repository", template=second)


def test_a_coordinate_of_texts_orders_files(tmp_path):
    names = ["aa", "ab", "b", "c", "d", "e", "x", "w", "y", "z", "y2", "z2"]

    def by_name(path, number):
        steps = 3 if number == 3 else 2
        data = made.dataset(0, steps=steps).drop_vars("time").rename(time="name")
        texts = np.array(names[2 * number : 2 * number + steps], object)
        data.assign_coords(name=("name", texts)).to_netcdf(path, engine="h5netcdf")

    files = made.archive(tmp_path / "files", by_name, 4)
    virtualize([files[2], files[0]], tmp_path / "repository", concat_dim="name")
    done = virtualize(files, tmp_path / "repository", concat_dim="name", on_mismatch="skip")
    assert statuses(done) == {"0.nc": "known", "1.nc": "taken", "2.nc": "known", "3.nc": "refused"}
    found, expected = by_reference(tmp_path / "repository"), concatenated(files[:3], "name")
    assert found["name"].values.tolist() == names[:6]
    np.testing.assert_array_equal(found["t2m"], expected["t2m"])
