"""HDF5 files are parsed as VirtualiZarr parses them, and strings of other encodings are read."""

from __future__ import annotations

import json
import os

import h5py
import numpy as np
import pytest
from helpers.archives import files as made
from helpers.archives.running import by_reference, virtualize

from icechunk_format.storage.location import Location, open_storage
from icechunk_format.workflows.virtualizing.scanning import parse
from icechunk_format.workflows.virtualizing.scanning.hdf5 import parse_hdf5
from icechunk_format.workflows.virtualizing.scanning.source_files import FileStore, SourceFile

pytest.importorskip("virtualizarr")
pytestmark = [
    pytest.mark.needs_reference,
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]


KINDS = [kind for kind in made.KINDS if not kind.startswith("netcdf3")]


def by_virtualizarr(path):
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser

    arrays, groups = [], {}
    found = HDFParser()(f"file://{path}", ObjectStoreRegistry({"file://": LocalStore()}))
    parse._walk(found._group, "", f"file://{path}", arrays, groups)
    return sorted(arrays, key=lambda array: array.path), groups


def by_us(path):
    file = SourceFile(url=f"file://{path}", size=os.path.getsize(path))
    arrays, groups = parse_hdf5(
        FileStore(open_storage(Location(str(path.parent))), path.name, file)
    )
    return sorted(arrays, key=lambda array: array.path), groups


def attributes(path, number):
    """Write attributes of many types, groups, and a chunk that is longer than its axis."""
    with h5py.File(path, "w") as file:
        values = file.create_dataset("v", data=np.arange(8.0), maxshape=(None,), chunks=(512,))
        values.attrs["_FillValue"] = -9.0
        values.attrs["list"] = [1, 2]
        values.attrs["texts"] = np.array(["x", "y"], dtype=object)
        values.attrs["bytes"] = np.bytes_("q")
        values.attrs["fixed"] = np.array([b"ab"])
        values.attrs["nothing"] = h5py.Empty("f4")
        values.attrs["nan"] = np.nan
        values.attrs["one"] = np.array(["one"], dtype=object)
        values.attrs["true"] = True
        values.attrs["empty"] = ""
        file.attrs["numbers"] = np.arange(3, dtype="i2")
        file.create_group("g").attrs["z"] = 1
        file["g"].create_dataset(
            "w", data=np.arange(6).reshape(2, 3), chunks=(1, 2), fletcher32=True
        )
        file["g"].create_dataset("u", data=np.array([(1, 2.0)], [("a", "<i4"), ("b", "<f8")]))


@pytest.mark.parametrize("kind", [*KINDS, "attributes"])
def test_documents_and_references_are_those_of_virtualizarr(kind, tmp_path):
    made.KINDS.get(kind, attributes)(tmp_path / "0.nc", 0)
    (arrays, groups), (others, other_groups) = (
        by_us(tmp_path / "0.nc"),
        by_virtualizarr(tmp_path / "0.nc"),
    )
    assert groups == other_groups
    assert [array.path for array in arrays] == [array.path for array in others]
    for own, other in zip(arrays, others, strict=True):
        assert own.json_document == other.json_document
        assert own.inline == other.inline
        for name in ("coords", "offsets", "lengths"):
            np.testing.assert_array_equal(getattr(own, name), getattr(other, name))


def latin(path, number):
    with h5py.File(path, "w") as file:
        file["time"] = np.arange(2.0) + 2 * number
        file["time"].attrs["units"] = "days since 2022-01-01"
        file["time"].make_scale("time")
        file["v"] = [5.0 + number, 7.0]
        file["v"].dims[0].attach_scale(file["time"])
        text = "température en °C".encode("latin-1")
        file["v"].attrs["fixed"] = np.bytes_(text)
        file["v"].attrs["fixed list"] = np.array([text, b"b"])
        ascii_type = h5py.string_dtype("ascii")
        file["v"].attrs.create("variable", text, dtype=ascii_type)
        file["v"].attrs.create("list", np.array([text, b"b"], dtype=object), dtype=ascii_type)
        file.attrs["institution"] = np.bytes_("Météo".encode("latin-1"))


def test_strings_in_latin_1_are_decoded(tmp_path):
    for number in range(2):
        latin(tmp_path / f"{number}.nc", number)
    virtualize(f"{tmp_path}/*.nc", tmp_path / "repository")
    found = by_reference(tmp_path / "repository")
    assert found["v"].values.tolist() == [5, 7, 6, 7]
    text = "température en °C"
    assert found["v"].attrs["fixed"] == found["v"].attrs["variable"] == text
    assert found["v"].attrs["fixed list"] == found["v"].attrs["list"] == [text, "b"]
    assert found.attrs["institution"] == "Météo"
    json.dumps(found["v"].attrs).encode()


def test_a_group_that_links_to_a_group_above_is_refused_and_a_dead_link_is_left_out(tmp_path):
    with h5py.File(tmp_path / "0.nc", "w") as file:
        file["v"] = [1.0]
        file["gone"] = h5py.SoftLink("/nowhere")
    arrays, _ = by_us(tmp_path / "0.nc")
    assert [array.path for array in arrays] == ["v"]
    with h5py.File(tmp_path / "0.nc", "a") as file:
        file["g/back"] = h5py.SoftLink("/")
    with pytest.raises(Exception, match="link to a group above"):
        by_us(tmp_path / "0.nc")
