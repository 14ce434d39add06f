"""Files of every format that has a parser become one dataset, with the values of its own reader."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers.archives import files as made
from helpers.archives.running import by_reference, concatenated, statuses, virtualize
from helpers.arrays.real_data import FOLDER
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.repository import Repository
from icechunk_format.storage.options import VirtualAccess
from icechunk_format.tables import open_dataset

pytest.importorskip("virtualizarr")
pytestmark = [
    pytest.mark.needs_reference,
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
    pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated"),
]


def by_us(done, path, variable, group=None):
    """Return an array as our own reader reads it."""
    dataset = open_dataset(
        Repository.open(str(path)), done.snapshot_id, group=group, access=VirtualAccess(done.places)
    )
    return dataset.read(variable)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_folders_of_zarr(zarr_format, tmp_path):
    files = made.archive(tmp_path / "files")
    for number in range(3):
        store = tmp_path / f"{number}.zarr"
        data, missing = made.dataset(number), -9.0 if zarr_format == 2 else np.nan
        data["t2m"] = data["t2m"].where(data["t2m"] != 5)
        how = {"t2m": {"_FillValue": missing}}
        data.to_zarr(store, zarr_format=zarr_format, consolidated=zarr_format == 2, encoding=how)
    done = virtualize(f"{tmp_path}/*.zarr", tmp_path / "repository")
    assert set(statuses(done).values()) == {"taken"}
    expected = concatenated(files)
    expected["t2m"] = expected["t2m"].where(expected["t2m"] != 5)
    xr.testing.assert_equal(by_reference(tmp_path / "repository"), expected)
    found = by_us(done, tmp_path / "repository", "t2m")
    missing = -9.0 if zarr_format == 2 else np.nan
    np.testing.assert_array_equal(found, expected["t2m"].fillna(missing))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("is_region", [False, True], ids=["rewritten", "a region of it"])
def test_a_rewritten_folder_of_zarr_is_referenced_anew(is_region, zarr_format, tmp_path):
    stores = [tmp_path / f"{number}.zarr" for number in range(2)]
    how = {"zarr_format": zarr_format, "consolidated": zarr_format == 2}
    for number, store in enumerate(stores):
        made.dataset(number).to_zarr(store, encoding={"t2m": {"chunks": (1, 6, 8)}}, **how)
    virtualize(list(map(str, stores)), tmp_path / "repository")
    changed = made.dataset(1)
    changed["t2m"][2] = -changed["t2m"][2]
    if is_region:
        part = changed[["t2m"]].isel(time=slice(2, 3)).drop_vars(["y", "x", "time"])
        part.to_zarr(stores[1], region={"time": slice(2, 3)}, **how)
    else:
        encoding = {"t2m": {"chunks": (1, 6, 8)}}
        changed.to_zarr(stores[1], mode="w", encoding=encoding, **how)
    done = virtualize(f"{tmp_path}/*.zarr", tmp_path / "repository")
    assert statuses(done) == {"0.zarr": "known", "1.zarr": "refreshed"}
    np.testing.assert_array_equal(by_us(done, tmp_path / "repository", "t2m")[4:], changed["t2m"])
    assert virtualize(f"{tmp_path}/*.zarr", tmp_path / "repository").files_added == 0


def test_a_folder_of_an_unknown_format_is_refused_with_the_known_ones(tmp_path):
    folder = tmp_path / "a.icechunk"
    folder.mkdir()
    (folder / "repo").write_bytes(b"ICE")
    with pytest.raises(InvalidInputError, match=r"a\.icechunk: it is a folder .*\.zarr of Zarr"):
        virtualize(str(folder), tmp_path / "repository")


@pytest.mark.parametrize("suffix", ["json", "parq"])
def test_references_of_kerchunk(suffix, tmp_path):
    from kerchunk.df import refs_to_dataframe
    from kerchunk.hdf import SingleHdf5ToZarr

    files = made.archive(tmp_path / "files", made.packed)
    for number, file in enumerate(files):
        found = SingleHdf5ToZarr(file).translate()
        target = tmp_path / f"{number}.{suffix}"
        if suffix == "json":
            target.write_text(json.dumps(found))
        else:
            refs_to_dataframe(found, str(target))
    done = virtualize(f"{tmp_path}/*.{suffix}", tmp_path / "repository")
    assert set(statuses(done).values()) == {"taken"}
    expected = concatenated(files)
    xr.testing.assert_equal(by_reference(tmp_path / "repository"), expected)
    stored = concatenated(files, mask_and_scale=False)["t2m"]
    np.testing.assert_array_equal(by_us(done, tmp_path / "repository", "t2m"), stored)


def test_images_of_fits_follow_the_dates_in_their_names(tmp_path):
    fits = pytest.importorskip("astropy.io.fits")
    sky = np.random.default_rng(0).normal(100, 10, (3, 20, 30)).astype("float32")
    counts = np.arange(3 * 20 * 30).reshape(3, 20, 30).astype("int16")
    for day in range(3):
        scaled = fits.ImageHDU(counts[day], name="COUNTS")
        scaled.header["BSCALE"], scaled.header["BZERO"] = 0.5, 10.0
        primary = fits.PrimaryHDU(sky[day])
        primary.header["OBSERVER"] = "somebody"
        fits.HDUList([primary, scaled]).writeto(tmp_path / f"2024070{day + 1}.fits")
    done = virtualize(f"{tmp_path}/*.fits", tmp_path / "repository", template="{time:%Y%m%d}.fits")
    found = by_reference(tmp_path / "repository")
    assert found["PRIMARY"].dims == ("time", "PRIMARY_y", "PRIMARY_x")
    assert found["PRIMARY"].attrs["OBSERVER"] == "somebody"
    assert str(found["time"].values[2])[:10] == "2024-07-03"
    np.testing.assert_array_equal(found["PRIMARY"], sky)
    read = [fits.getdata(tmp_path / f"2024070{day}.fits", "COUNTS") for day in (1, 2, 3)]
    np.testing.assert_array_equal(found["COUNTS"], np.stack(read))
    np.testing.assert_array_equal(by_us(done, tmp_path / "repository", "COUNTS"), np.stack(read))


def grib_messages(folder, count):
    """Write a real message at the hours of a day, with other values each."""
    eccodes = pytest.importorskip("eccodes")
    source = FOLDER / "polar_stereo.grib2"
    for number in range(count):
        with source.open("rb") as file:
            message = eccodes.codes_grib_new_from_file(file)
        eccodes.codes_set(message, "dataTime", 600 * number)
        eccodes.codes_set_values(message, eccodes.codes_get_values(message) + number)
        with (folder / f"{number}.grib2").open("wb") as file:
            eccodes.codes_write(message, file)
        eccodes.codes_release(message)


def test_messages_of_grib(tmp_path):
    pytest.importorskip("gribberish")
    pytest.importorskip("cfgrib")
    grib_messages(tmp_path, 3)
    (tmp_path / "3.grib2").write_bytes((tmp_path / "2.grib2").read_bytes()[:-2_000])
    done = virtualize(f"{tmp_path}/*.grib2", tmp_path / "repository", on_mismatch="skip")
    names = [f"{number}.grib2" for number in range(4)]
    assert [statuses(done)[name] for name in names] == ["taken"] * 3 + ["refused"]
    parts = [
        xr.open_dataset(tmp_path / name, engine="cfgrib", backend_kwargs={"indexpath": ""}).load()
        for name in names[:3]
    ]
    group = "isobar/instant"
    found = by_reference(tmp_path / "repository", group)
    times = [part["valid_time"].values for part in parts]
    np.testing.assert_array_equal(found["time"].values, times)
    expected = np.stack([part["t"].values for part in parts])
    np.testing.assert_allclose(found["tmp"].values, expected, atol=1e-4)
    np.testing.assert_allclose(found["latitude"].values, parts[0]["latitude"].values, atol=1e-4)
    np.testing.assert_array_equal(
        by_us(done, tmp_path / "repository", "tmp", group), found["tmp"].values
    )


@pytest.mark.parametrize("is_first", [True, False])
def test_a_message_that_another_one_replaces_is_refused(is_first, tmp_path):
    """Two runs forecast the same time; gribberish keeps the last message."""
    pytest.importorskip("gribberish.virtualizarr")
    grib_messages(tmp_path, 2)
    parts = [(tmp_path / f"{number}.grib2").read_bytes() for number in (0, 1)]
    (tmp_path / "both.grib2").write_bytes(b"".join(parts))
    done = virtualize(f"{tmp_path}/both.grib2", tmp_path / "right")
    assert done.files_added == 1
    (tmp_path / "both.grib2").write_bytes(b"".join([*parts, parts[0 if is_first else 1]]))
    at = 0 if is_first else len(parts[0])
    with raises(InvalidInputError, match=f"'isobar/instant/tmp': its message at byte {at:,} is in"):
        virtualize(f"{tmp_path}/both.grib2", tmp_path / "wrong")


def test_a_parser_of_gribberish_with_options_is_called(tmp_path):
    virtualizarr = pytest.importorskip("gribberish.virtualizarr")
    grib_messages(tmp_path, 2)
    parser = virtualizarr.GribberishParser(collapse_groups=True)
    virtualize(f"{tmp_path}/*.grib2", tmp_path / "repository", parser=parser)
    assert dict(by_reference(tmp_path / "repository").sizes) == {"time": 2, "y": 200, "x": 247}


@pytest.mark.parametrize(
    ("package", "parser", "text"),
    [
        ("gribberish", "grib", r"pip install 'virtualizarr\[grib\]' on the driver"),
        ("astropy", "fits", r"pip install 'virtualizarr\[fits\]'"),
        ("fastparquet", "kerchunk_parquet", r"pip install 'virtualizarr\[kerchunk-parquet\]'"),
        ("arro3", "zarr", r"pip install 'virtualizarr\[zarr\]'"),
    ],
)
def test_a_missing_package_is_one_error_that_says_what_to_install(
    package, parser, text, tmp_path, monkeypatch
):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == package else find(name)
    )
    Path(tmp_path / "x.bin").write_bytes(b"x" * 100)
    with pytest.raises(UnsupportedError, match=f"need the package {package}.*{text}"):
        virtualize(str(tmp_path / "x.bin"), tmp_path / "repository", parser=parser)
