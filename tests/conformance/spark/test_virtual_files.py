"""Real ocean files behind virtual references read through Spark as the files themselves."""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest
import zarr
from helpers.arrays.real_data import FOLDER, load_table, repository_of_files
from helpers.grids.cell_grids import assert_cells
from zarr.codecs import numcodecs as zn

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr:UserWarning"),
    pytest.mark.filterwarnings("ignore::xarray.SerializationWarning"),
    pytest.mark.filterwarnings("ignore:.*decode_timedelta.*:FutureWarning"),
]


@pytest.fixture(scope="module")
def months(tmp_path_factory) -> Path:
    """Three monthly ocean files as one array of virtual chunks that stay where they are."""
    path = tmp_path_factory.mktemp("virtual") / "months"
    prefix = (FOLDER / "NEMO").as_uri() + "/"
    repository = repository_of_files(path, prefix)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    array = root.create_array(
        "tos",
        shape=(3, 330, 360),
        chunks=(1, 330, 360),
        dtype="float32",
        compressors=[zn.Zlib()],
        fill_value=0,
        dimension_names=("month", "y", "x"),
    )
    for month, file in enumerate(sorted((FOLDER / "NEMO").glob("*.nc"))):
        with h5py.File(file) as opened:
            chunk = opened["tos"].id.get_chunk_info(0)
            [fill_value] = opened["tos"].attrs["_FillValue"]
        # As xarray writes the attribute: base64 of a double.
        text = base64.b64encode(struct.pack("<d", fill_value)).decode()
        array.attrs.update({"_FillValue": text, "units": "degC"})
        key = f"tos/c/{month}/0/0"
        session.store.set_virtual_ref(
            key, file.as_uri(), offset=chunk.byte_offset, length=chunk.size
        )
    session.commit("three months of sea surface temperature")
    return path


def test_virtual_chunks_are_the_files_that_they_refer_to(spark, months, last_line):
    files = sorted((FOLDER / "NEMO").glob("*.nc"))
    with h5py.File(files[0]) as opened:
        fill = opened["tos"].attrs["_FillValue"]
    values = np.concatenate([h5py.File(file)["tos"][:] for file in files])
    values = np.where(values == fill, np.nan, values)
    prefix = (FOLDER / "NEMO").as_uri() + "/"
    found = load_table(spark, months, {"virtual.authorize": prefix})
    labels = {"month": np.arange(3), "y": np.arange(330), "x": np.arange(360)}
    assert_cells(found, labels, {"tos": values}, decoded=True)
    refs = load_table(spark, months, {"layout": "refs"})
    assert sorted(refs["location"].to_pylist()) == [file.as_uri() for file in files]
    message = last_line(lambda: load_table(spark, months))
    assert "virtual.authorize" in message
