"""What does not fit is a row that names the file, the array and the difference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers.archives import files as made
from helpers.archives.running import by_reference, concatenated, statuses, virtualize
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.repository import Repository
from icechunk_format.workflows.virtualizing.planning.template import parse_template

pytest.importorskip("virtualizarr")
pytestmark = pytest.mark.needs_reference


def rows(done):
    return {row["file"].rpartition("/")[2]: row for row in done.report.to_pylist()}


def test_broken_files_are_rows_and_commit_nothing_unless_skipped(tmp_path):
    files = made.archive(tmp_path / "files", count=6)
    broken = Path(files[1]).read_bytes()
    Path(files[1]).write_bytes(broken[: len(broken) // 2])
    Path(files[3]).write_bytes(b"")
    Path(files[4]).write_text("not found")
    with raises(InvalidInputError, refused=3) as caught:
        virtualize(files, tmp_path / "repository")
    assert caught.value.facts["report"].num_rows == 6
    assert caught.value.facts["refused"] == 3
    assert not Repository.exists(str(tmp_path / "repository"))
    done = virtualize([*files, str(tmp_path / "nowhere.nc")], tmp_path / "repository",
                      on_mismatch="skip")  # fmt: skip
    found = rows(done)
    assert [found[f"{n}.nc"]["status"] for n in (0, 2, 5)] == ["taken"] * 3
    assert found["1.nc"]["difference"].startswith("the file is truncated: ")
    assert "empty" in found["3.nc"]["difference"]
    assert "b'not foun'" in found["4.nc"]["difference"]
    assert "nowhere.nc" in found["nowhere.nc"]["difference"]
    assert "gap" in found["5.nc"]["note"]
    assert (done.files_added, done.files_skipped) == (3, 4)
    expected = concatenated([files[0], files[2], files[5]])
    xr.testing.assert_identical(by_reference(tmp_path / "repository"), expected)


def test_a_truncated_classic_file_is_refused_though_its_header_is_whole(tmp_path):
    files = made.archive(tmp_path / "files", made.classic)
    data = Path(files[1]).read_bytes()
    Path(files[1]).write_bytes(data[:-100])
    done = virtualize(files, tmp_path / "repository", on_mismatch="skip")
    assert "truncated" in rows(done)["1.nc"]["difference"]


def other_chunks(data, settings):
    settings["chunksizes"] = (1, 6, 4)


def other_codecs(data, settings):
    settings["shuffle"] = False


def other_type(data, settings):
    data["t2m"] = data["t2m"].astype("float64")


def other_units(data, settings):
    data["t2m"].attrs["units"] = "degC"


def other_grid(data, settings):
    data["y"] = data["y"] + 1


def no_array(data, settings):
    data["rain"] = data["t2m"]


def overlap(data, settings):
    data["time"] = data["time"] - 2


@pytest.mark.parametrize(
    ("change", "array", "text"),
    [
        (other_chunks, "t2m", r"the chunk shape is \[1, 6, 4\], and \[2, 6, 4\] elsewhere"),
        (other_codecs, "t2m", "the codecs"),
        (other_type, "t2m", 'the type is "float64", and "float32" elsewhere'),
        (other_units, "t2m", 'the attribute units is "degC", and "K" elsewhere'),
        (other_grid, "y", "its values differ"),
        (no_array, "rain", "no other file has this array"),
        (overlap, None, "overlaps another file along time"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_mismatch_names_the_array_and_both_files(change, array, text, tmp_path):
    def one_differs(path, number):
        data, settings = made.dataset(number), dict(made.COMPRESSED["t2m"])
        if number == 1:
            attributes = data["time"].attrs
            change(data, settings)
            data["time"].attrs = attributes
        data.to_netcdf(path, engine="h5netcdf", encoding={"t2m": settings})

    files = made.archive(tmp_path / "files", one_differs)
    with raises(InvalidInputError, match=text, refused=1) as caught:
        virtualize(files, tmp_path / "repository")
    [row] = [r for r in caught.value.facts["report"].to_pylist() if r["status"] == "refused"]
    assert (row["array"], Path(row["file"]).name) == (array, "1.nc")
    assert row["compared_with"].endswith("0.nc")


def test_only_the_last_file_may_end_within_a_chunk(tmp_path):
    def ragged(path, number):
        made.compressed(path, number, steps=3 if number == 1 else 4)

    files = made.archive(tmp_path / "files", ragged)
    virtualize(files[:2], tmp_path / "repository")
    xr.testing.assert_identical(by_reference(tmp_path / "repository"), concatenated(files[:2]))
    with raises(InvalidInputError, match="follows a file that has 3 steps along time", refused=1):
        virtualize(files, tmp_path / "repository")
    with raises(InvalidInputError, match="only the last file", refused=1):
        virtualize(files, tmp_path / "other")


def test_times_that_the_units_cannot_count_are_refused(tmp_path):
    def finer(path, number):
        data = made.dataset(number)
        if number == 1:
            units = {"units": "minutes since 2024-07-01", "calendar": "standard"}
            data["time"] = ("time", data["time"].values * 60 + 30, units)
        data.to_netcdf(path, engine="h5netcdf", encoding=made.COMPRESSED)

    files = made.archive(tmp_path / "files", finer)
    done = virtualize(files, tmp_path / "repository", on_mismatch="skip")
    row = rows(done)["1.nc"]
    assert row["difference"].startswith("its times cannot be converted to 'hours since 2024-07-01'")
    found = by_reference(tmp_path / "repository")
    xr.testing.assert_identical(found, concatenated([files[0], files[2]]))


def test_more_references_than_a_task_holds_are_staged_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("icechunk_format.workflows.virtualizing.scanning.scan._MOST_ROWS", 5)
    monkeypatch.setattr(
        "icechunk_format.workflows.virtualizing.references.tasks._LEAST_REFS_PER_TASK", 1
    )
    files = made.archive(tmp_path / "files", count=7)
    virtualize(files, tmp_path / "repository")
    xr.testing.assert_identical(by_reference(tmp_path / "repository"), concatenated(files))


def test_files_without_steps_and_other_attributes_are_notes(tmp_path):
    def empty(path, number):
        data = made.dataset(number, steps=0 if number == 1 else 4)
        data.attrs["institute"] = f"number {number}"
        data["t2m"].attrs["long_name"] = f"number {number}"
        settings = {"t2m": {**made.COMPRESSED["t2m"], "complevel": 1 + number}}
        data.to_netcdf(path, engine="h5netcdf", unlimited_dims=["time"], encoding=settings)

    files = made.archive(tmp_path / "files", empty)
    done = virtualize(files, tmp_path / "repository")
    assert "no steps along time" in rows(done)["1.nc"]["note"]
    assert "institute" in rows(done)["2.nc"]["note"]
    assert "long_name" in rows(done)["2.nc"]["note"]
    found, expected = by_reference(tmp_path / "repository"), concatenated([files[0], files[2]])
    np.testing.assert_array_equal(found["t2m"].values, expected["t2m"].values)


def test_most_files_decide_what_fits(tmp_path):
    files = made.archive(tmp_path / "files")
    made.packed(Path(files[0]), 0)
    done = virtualize(files, tmp_path / "repository", on_mismatch="skip")
    assert statuses(done) == {"0.nc": "refused", "1.nc": "taken", "2.nc": "taken"}


@pytest.mark.parametrize(
    ("template", "url", "keys"),
    [
        ("{member}/{time:%Y%m%d}.nc", "s3://b/x/r1/19700102.nc", {"member": "r1", "time": 86400e6}),
        ("*_{level:d}.nc", "file:///a/t2m_0850.nc", {"level": 850}),
        ("{time:%Y}_{time_of:%H%M}.nc", "file:///1970_0100.nc", None),
    ],
)
def test_templates_find_keys(template, url, keys):
    if keys is None:
        assert parse_template(template).keys(url)["time"] == 0
    else:
        assert parse_template(template).keys(url) == keys


@pytest.mark.parametrize("text", ["x.nc", "{a}/{a}.nc", "{time:%Q}.nc", "{a:x}.nc"])
def test_templates_that_mean_nothing_are_refused(text):
    with raises(InvalidInputError, match="template=", option="template"):
        parse_template(text)


@pytest.mark.parametrize(
    ("how", "fact", "text"),
    [
        ({"concat_dim": ()}, ("option", "concat_dim"), "one of time, x, y"),
        ({"concat_dim": "tiem"}, ("option", "concat_dim"), "'time'"),
        ({"parser": "netcdf"}, ("option", "parser"), "'netcdf'"),
        ({"template": "{member}/{time:%Y}.nc"}, ("refused", 2), "template"),
        ({"files": "{}/*.grib"}, ("option", "files"), r"\*\.grib"),
    ],
)
def test_options_that_do_not_fit(how, fact, text, tmp_path):
    files = made.archive(tmp_path / "files", count=2)
    named = how.pop("files", None)
    with pytest.raises(InvalidInputError, match=text) as caught:
        virtualize(named.format(tmp_path) if named else files, tmp_path / "repository", **how)
    assert caught.value.facts[fact[0]] == fact[1]


def test_a_dry_run_reports_and_stores_nothing(tmp_path):
    files, place = made.archive(tmp_path / "files", count=4), tmp_path / "repository"
    for chosen in (files[:2], files):
        before = sorted(place.rglob("*"))
        planned = virtualize(chosen, place, dry_run=True)
        assert sorted(place.rglob("*")) == before
        done = virtualize(chosen, place)
        assert planned.dry_run
        assert statuses(planned) == statuses(done)
        assert planned.files_added == done.files_added == 2
        assert planned.references == done.references > 0
        assert planned.places == done.places
