"""Files are not added to arrays whose labels others appended or deleted meanwhile."""

from __future__ import annotations

import pyarrow as pa
import pytest
import xarray as xr
from helpers.archives import files as made
from helpers.archives.running import by_reference, statuses, virtualize
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.workflows.deleting import DeleteRequest, delete_selected
from icechunk_format.workflows.running import in_process

pytest.importorskip("virtualizarr")
pytestmark = [
    pytest.mark.needs_reference,
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]


def delete(place, folder):
    """Delete the last two of eight labels."""
    read = ReadRequest(path=place, isel={"time": [6, 7]}, virtual_authorize=(f"file://{folder}/",))
    options = WriteOptions(mode="append")
    delete_selected(DeleteRequest(read=read, options=options), in_process)


def append(place, folder):
    """Append a label as a table."""
    rows = xr.decode_cf(made.dataset(9, steps=1)).to_dataframe().reset_index()
    table = pa.Table.from_pandas(rows, preserve_index=False)
    times = table["time"].cast(pa.timestamp("us"))
    table = table.set_column(table.column_names.index("time"), "time", times)
    write_table(place, table, WriteOptions(mode="append"))


@pytest.mark.parametrize(("change", "length"), [(delete, 6), (append, 9)])
def test_further_files_are_refused(change, length, tmp_path):
    files = made.archive(tmp_path / "files", count=3)
    place = str(tmp_path / "repository")
    virtualize(files[:2], place)
    change(place, tmp_path / "files")
    before, tip = by_reference(place), Repository.open(place).resolve()
    assert before.sizes["time"] == length
    with raises(InvalidInputError, dimension="time") as caught:
        virtualize(files, place)
    assert f"has {length} elements along time, and its files have 8" in str(caught.value)
    assert Repository.open(place).resolve() == tip
    xr.testing.assert_equal(by_reference(place), before)
    # Without a further file, there is nothing to place.
    assert statuses(virtualize(files[:2], place)) == {"0.nc": "known", "1.nc": "known"}
