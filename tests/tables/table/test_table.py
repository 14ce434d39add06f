"""A group becomes the table of its arrays, or an error that says what to choose."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
from helpers.grids.synthetic_datasets import ArrayToWrite, write_dataset
from helpers.raised import raises

from icechunk_format.encoding.ids import NodeId, SnapshotId
from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.snapshot.file import ArrayNode, NodeSnapshot, Snapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestRefs
from icechunk_format.errors import InvalidInputError, NotFoundError, UnsupportedError
from icechunk_format.groups.dimension_sets import find_group
from icechunk_format.tables.table.table import FIELD_METADATA_KEY


def array(*dims, dtype="f4", chunks=None, **options):
    sizes = {"time": 6, "lat": 4, "lon": 5, "station": 3, "nv": 2}
    shape = tuple(sizes[dim] for dim in dims)
    values = np.zeros(shape, dtype=dtype)
    return ArrayToWrite(values=values, chunks=chunks or (2,) * len(shape), dims=dims, **options)


def climate(**more):
    arrays = {
        "air": array("time", "lat", "lon", attributes={"coordinates": "area"}),
        "rain": array("time", "lat", "lon", attributes={"grid_mapping": "crs: area"}),
        "mask": array("lat", "lon", dtype="i1"),
        "area": array("lat", "lon", dtype="f8"),
        "time": array(
            "time", dtype="i8", attributes={"units": "days since 2000-01-01", "bounds": "time_b"}
        ),
        "time_b": array("time", "nv", dtype="i8"),
        "lat": array("lat", dtype="f8"),
        "crs": array(dtype="i4"),
        **more,
    }
    return write_dataset("climate", arrays)


def names(table):
    return list(table.names)


def test_the_largest_set_of_dimensions_is_the_table():
    table = climate().table()
    assert names(table) == ["time", "lat", "lon", "air", "rain"]
    assert [c.role for c in table.columns] == ["dimension"] * 3 + ["variable"] * 2
    assert table.arrow_schema.types == [
        pa.timestamp("us"),
        pa.float64(),
        pa.int64(),
        pa.float32(),
        pa.float32(),
    ]


def test_parts_scalars_and_coordinates_come_when_named():
    dataset = climate()
    assert names(dataset.table(variables=["rain", "mask", "crs"])) == [
        "time",
        "lat",
        "lon",
        "rain",
        "mask",
        "crs",
    ]
    assert names(dataset.table(variables=["air"], coords=["area", "lat"])) == [
        "time",
        "lat",
        "lon",
        "air",
        "area",
    ]
    assert names(dataset.table(variables=["mask"])) == ["lat", "lon", "mask"]
    assert names(dataset.table(variables=["time"])) == ["time"]
    assert names(dataset.table(variables=["crs"])) == ["crs"]
    assert names(dataset.table(variables=["time_b"])) == ["time", "nv", "time_b"]


def test_times_of_bounds_are_decoded_like_those_of_their_variable():
    table = climate().table(variables=["time_b"])
    assert table.column("time_b").arrow_type == pa.timestamp("us")
    table = climate().table(variables=["time"], timestamp_type="utc")
    assert table.column("time").arrow_type == pa.timestamp("us", tz="UTC")
    assert climate().table(variables=["time"], decode_cf=False).columns[0].arrow_type == pa.int64()


def test_sets_that_do_not_nest_are_listed_with_the_option_that_selects_each():
    dataset = climate(depth=array("station"), speed=array("time", "station"))
    with pytest.raises(InvalidInputError) as caught:
        dataset.table()
    text = caught.value.message
    assert "(time=6, lat=4, lon=5): variables=air,rain" in text
    assert "(time=6, station=3): variables=speed" in text
    assert "variables=air,rain for (time, lat, lon)" in text.splitlines()[-1]
    assert "variables=speed for (time, station)" in text.splitlines()[-1]
    with raises(InvalidInputError, named=True, sets=...):
        dataset.table(variables=["air", "speed"])
    assert names(dataset.table(variables=["speed", "depth"])) == [
        "time",
        "station",
        "speed",
        "depth",
    ]


def test_a_tie_is_an_error():
    dataset = write_dataset("tie", {"a": array("time"), "b": array("lat")})
    with pytest.raises(InvalidInputError, match="variables=a"):
        dataset.table()


def test_unnamed_dimensions_of_different_sizes_are_different_dimensions():
    def plain(*shape):
        return ArrayToWrite(values=np.zeros(shape, "f4"), chunks=shape, dims=None)

    dataset = write_dataset("plain", {"a": plain(4, 5), "b": plain(4, 6), "c": plain(4, 5)})
    with pytest.raises(InvalidInputError, match=r"\(dim_0=4, dim_1=5\): variables=a,c"):
        dataset.table()
    assert names(dataset.table(variables=["a", "c"])) == ["dim_0", "dim_1", "a", "c"]
    assert dataset.table("refs").dims == ("dim_0",)


def test_a_dimension_that_comes_twice_is_refused():
    square = ArrayToWrite(values=np.zeros((3, 3), "f4"), chunks=(3, 3), dims=("x", "x"))
    dataset = write_dataset("square", {"cov": square, "a": array("time")})
    with raises(InvalidInputError, variable="cov", dims=("x", "x")):
        dataset.table()
    assert names(dataset.table(variables=["a"])) == ["time", "a"]
    assert dataset.table("chunks", variables=["cov"]).arrays == ("/cov",)


def test_names_that_clash_are_refused():
    dataset = write_dataset("case", {"T": array("time"), "t": array("time")})
    with raises(InvalidInputError, match="differ in case alone", columns=("T", "t")):
        dataset.table()
    assert names(dataset.table(variables=["t"])) == ["time", "t"]
    assert names(dataset.table(variables=["T"])) == ["time", "T"]
    dataset = write_dataset("clash", {"lat": array("lat", "lon"), "a": array("lat", "lon")})
    with raises(InvalidInputError, match="name of a dimension", columns=("lat", "lat")):
        dataset.table()
    assert names(dataset.table(variables=["a"])) == ["lat", "lon", "a"]


def test_labels_of_another_length_are_refused():
    dataset = write_dataset(
        "lengths",
        {
            "a": array("time"),
            "time": ArrayToWrite(values=np.zeros(4, "i8"), chunks=(4,), dims=("time",)),
        },
    )
    with raises(InvalidInputError, match="6 elements", dim="time", size=6, labels=4):
        dataset.table(variables=["a"])


def test_unknown_arrays_are_answered_with_what_exists_nearest_first():
    with pytest.raises(NotFoundError) as caught:
        climate().table(variables=["rian"])
    assert caught.value.facts["existing"][0] == "rain"
    with pytest.raises(NotFoundError):
        climate().table(coords=["nothing"])
    with raises(InvalidInputError, coordinate="depth", dims=("time", "lat", "lon")):
        climate(depth=array("station")).table(variables=["air"], coords=["depth"])


def test_one_array_that_cannot_be_read_does_not_close_the_group():
    strange = array("time", "lat", "lon")
    dataset = climate(odd=strange)
    node = dataset.variables["odd"].node
    document = json.loads(node.user_data)
    document["codecs"] = [{"name": "pcodec-of-the-future", "configuration": {}}]
    changed = NodeSnapshot(
        id=node.id, path=node.path, user_data=json.dumps(document).encode(), array=node.array
    )
    dataset.variables["odd"] = type(dataset.variables["odd"])(changed)
    with raises(UnsupportedError, node_path="/odd", codec="pcodec-of-the-future") as caught:
        dataset.table()
    assert "variables=" in caught.value.message.splitlines()[-1]
    assert "odd" not in caught.value.message.splitlines()[-1]
    assert names(dataset.table(variables=["air"]))[-1] == "air"
    with pytest.raises(UnsupportedError):
        dataset.table("chunks", variables=["odd"])
    assert "/odd" in dataset.table("refs").arrays


def test_columns_are_selected_in_the_spelling_of_the_caller():
    table = climate().table()
    chosen = table.select(["AIR", "lat"])
    assert names(chosen) == ["AIR", "lat"]
    assert chosen.columns[0].source == "air"
    with raises(InvalidInputError, column="ran") as raised:
        table.select(["ran"])
    assert raised.value.facts == {"column": "ran", "existing": table.names}
    with raises(InvalidInputError, columns=("air", "AIR"), existing=table.names):
        table.select(["air", "AIR"])
    with raises(InvalidInputError, columns=(), existing=table.names):
        table.select([])


def test_field_metadata_describes_how_to_write_a_column_back():
    stored = array("time", "lat", "lon", chunks=(1, 2, 5), shards=(2, 4, 5), attributes={"a": 1})
    table = climate(wet=stored).table(variables=["wet"])
    described = json.loads(table.arrow_schema.field("wet").metadata[FIELD_METADATA_KEY])
    assert described["role"] == "variable"
    assert described["dimensions"] == ["time", "lat", "lon"]
    assert described["chunks"] == [1, 2, 5]
    assert described["shards"] == [2, 4, 5]
    assert described["stored_dtype"] == "float32"
    assert described["attributes"] == {"a": 1}
    time = json.loads(table.arrow_schema.field("time").metadata[FIELD_METADATA_KEY])
    assert time["encoding"]["units"] == "days since 2000-01-01"
    lon = json.loads(table.arrow_schema.field("lon").metadata[FIELD_METADATA_KEY])
    assert lon == {
        "role": "dimension",
        "dimensions": ["lon"],
        "shape": [5],
        "table_dimensions": ["time", "lat", "lon"],
    }
    assert pickle.loads(pickle.dumps(table)) == table


def test_layouts_and_their_options():
    dataset = climate()
    with raises(
        InvalidInputError,
        match="cells, chunks, refs, summary",
        option="layout",
        found="rows",
        allowed=("cells", "chunks", "refs", "summary"),
    ):
        dataset.table("rows")
    with raises(InvalidInputError, option="block", layout="cells"):
        dataset.table(block={"time": 2})
    with raises(InvalidInputError, option="decoded", layout="cells"):
        dataset.table(decoded=False)
    with raises(InvalidInputError, option="coords", layout="refs"):
        dataset.table("refs", coords=["lat"])
    summary = dataset.table("summary", variables=["air"], block={"time": 3})
    assert names(summary)[:6] == [
        "time_first",
        "time_last",
        "lat_first",
        "lat_last",
        "lon_first",
        "lon_last",
    ]
    assert names(summary)[6:] == [
        f"air_{s}" for s in ("count", "nulls", "min", "max", "sum", "mean", "m2")
    ]
    assert summary.block == (3, None, None)
    for bad, fact in (({"tim": 3}, {"name": "tim"}), ({"time": 0}, {"found": 0})):
        with raises(InvalidInputError, option="block", **fact):
            dataset.table("summary", block=bad)
    chunks = dataset.table("chunks")
    assert names(chunks) == ["array", "chunk", "start", "shape", "dtype", "data"]
    assert chunks.arrays == ("/air", "/mask", "/rain")
    assert len(dataset.table("refs").arrays) == 8
    with raises(InvalidInputError, match="along dimensions", where="lat > lon", layout="chunks"):
        dataset.plan(chunks, where="lat > lon")


def test_strings_have_no_chunk_rows():
    words = ArrayToWrite(
        values=np.array(["a", "bc"], dtype=object), chunks=(2,), dims=("time",), fill_value=""
    )
    dataset = write_dataset("words", {"word": words})
    assert dataset.table().columns[-1].arrow_type == pa.string()
    with raises(UnsupportedError, match="decoded=false", array="/word", data_type="string"):
        dataset.table("chunks")
    assert dataset.table("chunks", decoded=False).arrays == ("/word",)


def snapshot_of(*paths):
    nodes = []
    for number, path in enumerate(sorted(paths)):
        is_array = path.rpartition("/")[2].startswith("v")
        node = ArrayNode(
            shape=(), num_chunks=(), dimension_names=(), manifests=ManifestRefs.empty(0)
        )
        nodes.append(
            NodeSnapshot(
                id=NodeId(bytes([number]) * 8),
                path=NodePath(path),
                user_data=b"{}",
                array=node if is_array else None,
            )
        )
    return Snapshot(id=SnapshotId(b"1" * 12), flushed_at=0, message="", nodes=tuple(nodes))


def test_the_group_is_chosen_when_there_is_one_choice():
    assert find_group(snapshot_of("/", "/v", "/a", "/a/v"), None, label="here") == "/"
    assert find_group(snapshot_of("/", "/a", "/a/v"), None, label="here") == "/a"
    assert find_group(snapshot_of("/"), None, label="here") == "/"
    two = snapshot_of("/", "/a", "/a/v", "/b", "/b/v")
    with raises(
        InvalidInputError, match=r"/a, /b; choose one with the option group", groups=("/a", "/b")
    ):
        find_group(two, None, label="here")
    assert find_group(two, "b", label="here") == find_group(two, "/b/", label="here") == "/b"
    with raises(InvalidInputError, group="/b/v"):
        find_group(two, "b/v", label="here")
    with pytest.raises(NotFoundError) as caught:
        find_group(two, "/bb", label="here")
    assert caught.value.facts["existing"][0] == "/b"


def test_a_group_without_arrays_says_so():
    dataset = write_dataset("nothing", {})
    with raises(InvalidInputError, arrays=()):
        dataset.table()


def test_a_table_knows_what_it_leaves_out():
    dataset = climate()
    assert [v.name for v in dataset.left_out(dataset.table())] == ["mask"]
    assert dataset.left_out(dataset.table(variables=["air", "rain", "mask"])) == []
