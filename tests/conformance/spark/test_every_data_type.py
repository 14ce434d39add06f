"""Every data type and every codec that zarr-python writes reads the same through Spark.

The cells, the values that xarray decodes and the elements of chunks are compared, of one repository
that holds every data type plain and in shards, every number through every compressor, and filters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.arrays.every_data_type import COMPRESSORS, FILTERS, OTHERS, SHAPE, build_zoo
from helpers.grids.cell_grids import assert_cells
from helpers.grids.zarr_arrays import NUMBERS
from helpers.grids.zarr_grids import Grid, at_once, grids_of, groups_of, load, load_by_function

if TYPE_CHECKING:
    from collections.abc import Iterator

    from helpers.reference.repositories import ReferenceRepository


pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr:UserWarning"),
]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory) -> Iterator[ReferenceRepository]:
    # zarr-python reads rectilinear grids only where this is set.
    with zarr.config.set({"array.rectilinear_chunks": True}):
        yield build_zoo(tmp_path_factory.mktemp("zoo") / "zoo")


def test_every_data_type_and_codec_has_the_same_cells(spark, zoo):
    def compare(grid: Grid) -> None:
        found = load(spark, zoo, group=grid.group, decodeCf="false").toArrow()
        assert_cells(found, grid.labels, grid.values, decoded=False)

    grids = list(grids_of(zoo.open().readonly_session("main").store))
    at_once(compare, grids)
    types, codecs = len(NUMBERS) + len(OTHERS), len(NUMBERS) * len(COMPRESSORS) + len(FILTERS)
    assert sum(len(grid.arrays) for grid in grids) == 2 * types + codecs + 2


@pytest.mark.parametrize("load", [load, load_by_function])
def test_every_data_type_has_the_values_that_xarray_decodes(spark, zoo, load):
    store = zoo.open().readonly_session("main").store
    for group in ("types", "shards"):
        found = load(spark, zoo, group=group).toArrow()
        theirs = xr.open_zarr(store, group=group, consolidated=False, chunks=None)
        labels = {"y": np.arange(SHAPE[0]), "x": np.arange(SHAPE[1])}
        values = {name: theirs[name].values for name in found.column_names[2:]}
        assert set(values) == set(theirs.data_vars)
        assert_cells(found, labels, values, decoded=True)


def test_chunks_of_every_data_type(spark, zoo):
    store = zoo.open().readonly_session("main").store
    groups = {name: of for name, of in groups_of(store).items() if "compressors" not in name}
    skipped = {"text", "bytes_variable"}
    for group, arrays in groups.items():
        names = [name for name in arrays if name not in skipped]
        frame = load(spark, zoo, "chunks", group=group, variables=",".join(names))
        cells = dict.fromkeys(names, 0)
        for row in frame.toArrow().to_pylist():
            name = row["array"].rpartition("/")[2]
            (top, left), (height, width) = row["start"], row["shape"]
            expected = arrays[name][top : top + height, left : left + width]
            expected = expected.astype(expected.dtype.newbyteorder("<"))
            assert row["data"] == expected.tobytes(), row["array"]
            cells[name] += height * width
        assert set(cells.values()) == {20}
