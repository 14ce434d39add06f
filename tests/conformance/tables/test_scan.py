"""The cells of a scan are the rows of xarray's ``to_dataframe``, and its summaries are NumPy's.

Repositories are written by the reference library through xarray and zarr; what our scans give is
compared with what xarray reads back.
"""

import icechunk
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
import zarr
from helpers.reference import repositories as reference_repositories

from icechunk_format.errors import UnauthorizedVirtualChunkError
from icechunk_format.repository import Repository
from icechunk_format.storage.options import VirtualAccess
from icechunk_format.tables import open_dataset
from icechunk_format.tables.reading import run_scan

pytestmark = [
    pytest.mark.core,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]


def commit(tmp_path, write, *, split=None):
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 16
    if split is not None:
        condition = icechunk.ManifestSplitCondition.AnyArray()
        along = icechunk.ManifestSplitDimCondition.Any()
        config.manifest = icechunk.ManifestConfig(
            splitting=icechunk.ManifestSplittingConfig.from_dict({condition: {along: split}})
        )
    repository = icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(tmp_path)), config=config
    )
    session = repository.writable_session("main")
    write(session.store)
    session.commit("data")
    return repository


def ours(tmp_path, *, layout="cells", group=None, plan=None, **options):
    repository = Repository.open(str(tmp_path))
    dataset = open_dataset(repository, repository.resolve(branch="main"), group)
    table = dataset.table(layout, **options)
    planned = dataset.plan(table, **(plan or {}))
    batches = []
    for task in planned.tasks:
        for batch in run_scan(planned.context, task):
            assert batch.schema.equals(planned.arrow_schema)
            batches.append(batch)
    rows = pa.Table.from_batches(batches, schema=planned.arrow_schema)
    return rows.to_pandas(), planned


def theirs(repository, group=None, **options):
    store = repository.readonly_session("main").store
    return xr.open_zarr(store, group=group, consolidated=False, chunks=None, **options)


def assert_same_rows(found, expected, keys):
    assert list(found.columns) == list(expected.columns)
    found = found.sort_values(keys, ignore_index=True) if keys else found
    expected = expected.sort_values(keys, ignore_index=True) if keys else expected
    for name in expected.columns:
        mine, other = found[name], expected[name]
        if other.dtype.kind == "M":
            other = other.astype("datetime64[us]")
            mine = mine.astype("datetime64[us]")
        pd.testing.assert_series_equal(mine, other, check_dtype=False, rtol=1e-6)


def weather(times=7, lats=6, lons=5, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.normal(280, 10, size=(times, lats, lons)).astype("float32")
    values[1, 2, :3] = np.nan
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), values),
            "rain": (("time", "lat", "lon"), rng.integers(0, 9, size=values.shape, dtype="i2")),
            "orography": (("lat", "lon"), rng.normal(size=(lats, lons))),
        },
        coords={
            "time": pd.date_range("2024-01-01", periods=times, freq="6h"),
            "lat": np.linspace(60, 40, lats),
            "lon": np.linspace(0, 20, lons, dtype="float32"),
        },
    )


LAYOUTS_ON_DISK = {
    "one chunk": {},
    "chunked": {"t2m": {"chunks": (2, 3, 5)}, "rain": {"chunks": (2, 3, 5)}},
    "chunked differently": {"t2m": {"chunks": (1, 6, 5)}, "rain": {"chunks": (7, 2, 2)}},
    "sharded": {
        "t2m": {"chunks": (1, 2, 5), "shards": (4, 6, 5)},
        "rain": {"chunks": (3, 3, 3), "shards": (6, 6, 6)},
    },
    "tiny chunks": {"t2m": {"chunks": (1, 2, 1)}, "rain": {"chunks": (1, 2, 2)}},
}


@pytest.mark.parametrize("on_disk", LAYOUTS_ON_DISK)
@pytest.mark.parametrize("rows_per_partition", [None, 17])
def test_cells_are_the_rows_of_to_dataframe(tmp_path, on_disk, rows_per_partition):
    dataset = weather()
    repository = commit(
        tmp_path,
        lambda store: dataset.to_zarr(store, consolidated=False, encoding=LAYOUTS_ON_DISK[on_disk]),
        split=3,
    )
    found, plan = ours(
        tmp_path,
        variables=["t2m", "rain", "orography"],
        plan={"rows_per_partition": rows_per_partition},
    )
    expected = theirs(repository).to_dataframe(dim_order=["time", "lat", "lon"]).reset_index()
    expected = expected[["time", "lat", "lon", "t2m", "rain", "orography"]]
    assert_same_rows(found, expected, ["time", "lat", "lon"])
    assert plan.rows == len(expected)


@pytest.mark.parametrize("on_disk", LAYOUTS_ON_DISK)
def test_selections_are_those_of_xarray(tmp_path, on_disk):
    repository = commit(
        tmp_path,
        lambda store: weather().to_zarr(
            store, consolidated=False, encoding=LAYOUTS_ON_DISK[on_disk]
        ),
        split=2,
    )
    found, _ = ours(
        tmp_path,
        plan={
            "where": "(time = TIMESTAMP '2024-01-01 06:00:00' OR time > '2024-01-02') "
            "AND lat BETWEEN 43 AND 57 AND t2m > 275",
            "sel": "lon=5:20",
            "columns": ["lon", "t2m", "time", "lat"],
            "rows_per_partition": 9,
        },
    )
    expected = theirs(repository).sel(lon=slice(5, 20), lat=slice(57, 43))
    expected = expected[["t2m"]].to_dataframe().reset_index()
    chosen = (expected.time == "2024-01-01 06:00:00") | (expected.time > "2024-01-02")
    expected = expected[chosen & (expected.t2m > 275)][["lon", "t2m", "time", "lat"]]
    assert len(expected)
    assert_same_rows(found, expected, ["time", "lat", "lon"])


def test_missing_chunks_read_as_fill_or_not_at_all(tmp_path):
    def write(store):
        group = zarr.group(store)
        for name, fill in (("a", 7), ("b", -1)):
            array = group.create_array(
                name,
                shape=(10, 10),
                chunks=(3, 4),
                dtype="i4",
                fill_value=fill,
                dimension_names=("y", "x"),
            )
            if name == "a":
                array[0:3, 0:4] = 1
            else:
                array[0:3, 4:8] = 2
                array[9:10, 8:10] = 3

    repository = commit(tmp_path, write, split=1)
    filled, _ = ours(tmp_path)
    expected = theirs(repository, mask_and_scale=False)
    values = {name: expected[name].values.ravel() for name in ("a", "b")}
    y, x = (axis.ravel() for axis in np.indices((10, 10)))
    frame = pd.DataFrame({"y": y, "x": x, **values})
    assert_same_rows(filled, frame, ["y", "x"])
    stored = ((frame.y < 3) & (frame.x < 8)) | ((frame.y == 9) & (frame.x >= 8))
    for rows in (None, 1):
        skipped, _ = ours(tmp_path, plan={"missing_chunks": "skip", "rows_per_partition": rows})
        assert_same_rows(skipped, frame[stored], ["y", "x"])
    # The rows do not depend on the columns that are asked for.
    only_x, _ = ours(tmp_path, plan={"missing_chunks": "skip", "columns": ["x"]})
    both, _ = ours(tmp_path, plan={"missing_chunks": "skip", "columns": ["y", "x"]})
    assert_same_rows(both, frame[stored][["y", "x"]], ["y", "x"])
    assert sorted(only_x.x) == sorted(frame[stored].x)


def test_missing_inner_chunks_of_shards(tmp_path):
    def write(store):
        array = zarr.create_array(
            store,
            name="v",
            shape=(8, 8),
            chunks=(2, 2),
            shards=(4, 4),
            dtype="f8",
            fill_value=0.5,
            dimension_names=("y", "x"),
        )
        array[0:2, 0:2] = 3.0
        array[6:8, 4:6] = 4.0

    repository = commit(tmp_path, write)
    found, _ = ours(tmp_path)
    y, x = (axis.ravel() for axis in np.indices((8, 8)))
    frame = pd.DataFrame({"y": y, "x": x, "v": theirs(repository)["v"].values.ravel()})
    assert_same_rows(found, frame, ["y", "x"])
    skipped, _ = ours(tmp_path, plan={"missing_chunks": "skip"})
    stored = ((frame.y < 2) & (frame.x < 2)) | ((frame.y >= 6) & frame.x.isin([4, 5]))
    assert_same_rows(skipped, frame[stored], ["y", "x"])


def test_transposed_variables_and_two_dimensional_coordinates(tmp_path):
    rng = np.random.default_rng(1)
    dataset = xr.Dataset(
        {
            "u": (("y", "x"), rng.normal(size=(4, 6))),
            "v": (("x", "y"), rng.normal(size=(6, 4))),
        },
        coords={"station": (("y", "x"), rng.integers(0, 99, size=(4, 6))), "y": [4, 3, 2, 1]},
    )
    encoding = {"u": {"chunks": (2, 3)}, "v": {"chunks": (4, 1)}, "station": {"chunks": (4, 4)}}
    repository = commit(
        tmp_path, lambda store: dataset.to_zarr(store, consolidated=False, encoding=encoding)
    )
    found, _ = ours(tmp_path, coords=["station"])
    frame = theirs(repository).to_dataframe(dim_order=["y", "x"]).reset_index()
    assert_same_rows(found, frame[["y", "x", "u", "v", "station"]], ["y", "x"])
    plain, _ = ours(tmp_path)
    assert list(plain.columns) == ["y", "x", "u", "v"]


def test_strings_and_scalars(tmp_path):
    dataset = xr.Dataset(
        {"name": (("station",), np.array(["Oslo", "Ås", "", "Bø"], dtype=object))},
        coords={"station": [3, 1, 4, 1], "crs": 4326},
    )
    repository = commit(tmp_path, lambda store: dataset.to_zarr(store, consolidated=False))
    found, _ = ours(tmp_path, variables=["name", "crs"])
    frame = theirs(repository).to_dataframe().reset_index()
    assert_same_rows(found, frame[["station", "name", "crs"]], ["name"])
    only, plan = ours(tmp_path, variables=["crs"])
    assert only.crs.tolist() == [4326]
    assert plan.rows == 1


@pytest.mark.parametrize("on_disk", LAYOUTS_ON_DISK)
@pytest.mark.parametrize("read_ahead_bytes", [1 << 26, 600])
def test_summaries_are_those_of_numpy(tmp_path, on_disk, read_ahead_bytes):
    repository = commit(
        tmp_path,
        lambda store: weather().to_zarr(
            store, consolidated=False, encoding=LAYOUTS_ON_DISK[on_disk]
        ),
        split=2,
    )
    found, _ = ours(
        tmp_path,
        layout="summary",
        block={"time": 3, "lat": 4, "lon": 5},
        plan={
            "where": "rain < 7 AND lat < 58",
            "rows_per_partition": 11,
            "read_ahead_bytes": read_ahead_bytes,
        },
    )
    frame = theirs(repository)[["t2m", "rain"]].to_dataframe().reset_index()
    frame["block"] = (frame.time.rank(method="dense") - 1) // 3 * 10 + (
        frame.lat.rank(method="dense", ascending=False) - 1
    ) // 4
    frame = frame[(frame.rain < 7) & (frame.lat < 58)]
    found = found.sort_values(["time_first", "lat_first"], ascending=[True, False])
    groups = frame.groupby("block")
    assert len(found) == len(groups)
    for name in ("t2m", "rain"):
        values = groups[name]
        np.testing.assert_array_equal(found[f"{name}_count"], values.count())
        np.testing.assert_array_equal(found[f"{name}_nulls"], values.size() - values.count())
        for statistic in ("min", "max", "sum", "mean"):
            np.testing.assert_allclose(
                found[f"{name}_{statistic}"], getattr(values, statistic)(), rtol=1e-6
            )
        np.testing.assert_allclose(
            found[f"{name}_m2"], values.var(ddof=0) * values.count(), rtol=1e-5
        )
    times = theirs(repository).time.values
    assert set(found.time_first) == set(times[[0, 3, 6]].astype("M8[us]"))
    assert set(found.time_last) == set(times[[2, 5, 6]].astype("M8[us]"))
    assert found.rain_sum.dtype == np.int64


@pytest.mark.parametrize("on_disk", LAYOUTS_ON_DISK)
def test_chunks_put_together_are_the_array(tmp_path, on_disk):
    repository = commit(
        tmp_path,
        lambda store: weather().to_zarr(
            store, consolidated=False, encoding=LAYOUTS_ON_DISK[on_disk]
        ),
        split=2,
    )
    found, _ = ours(tmp_path, layout="chunks")
    expected = theirs(repository, mask_and_scale=False)
    for name in ("t2m", "rain", "orography"):
        values = expected[name].values
        built, seen = np.empty_like(values), np.zeros(values.shape, dtype=int)
        for row in found[found.array == f"/{name}"].itertuples():
            box = tuple(slice(a, a + n) for a, n in zip(row.start, row.shape, strict=True))
            built[box] = np.frombuffer(row.data, row.dtype).reshape(row.shape)
            seen[box] += 1
        assert (seen == 1).all()
        np.testing.assert_array_equal(built, values)
    stored, _ = ours(tmp_path, layout="chunks", decoded=False, plan={"isel": "time=0"})
    assert set(stored.columns) == set(found.columns)
    assert (stored[stored.array == "/t2m"].start.map(lambda start: start[0]) == 0).all()


def test_refs_list_every_reference(tmp_path):
    repository = commit(
        tmp_path,
        lambda store: weather().to_zarr(
            store, consolidated=False, encoding=LAYOUTS_ON_DISK["chunked"]
        ),
        split=2,
    )
    found, _ = ours(tmp_path, layout="refs")
    session = repository.readonly_session("main")
    counts = found.groupby("array").size()
    for name in ("t2m", "rain", "orography", "time", "lat", "lon"):
        listed = found[found.array == f"/{name}"].chunk.map(tuple).tolist()
        array = zarr.open_array(session.store, path=name, mode="r")
        expected = (
            list(np.ndindex(*array._chunk_grid_shape))
            if hasattr(array, "_chunk_grid_shape")
            else list(np.ndindex(*array.cdata_shape))
        )
        assert sorted(listed) == sorted(expected)
        assert counts[f"/{name}"] == len(expected)
    assert set(found.kind) <= {"native", "inline"}
    natives = found[found.kind == "native"]
    files = {path.name for path in (tmp_path / "chunks").iterdir()}
    assert set(natives.chunk_id) == files
    selected, _ = ours(tmp_path, layout="refs", variables=["t2m"], plan={"isel": "time=2:4"})
    assert {chunk[0] for chunk in selected.chunk} == {1}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    kept = {}

    def make(name, spec_version):
        key = (name, spec_version)
        if key not in kept:
            kept[key] = reference_repositories.build(
                name, spec_version, tmp_path_factory.mktemp(name)
            )
        return kept[key]

    return make


STATES_OF_CHUNKS = {
    "inline_and_native_chunks",
    "resized_arrays",
    "shifted_array",
    "split_manifests",
    "sharded_arrays",
    "virtual_chunks",
    "named_container",
    "compressed_locations",
    "moved_nodes",
    "nested_groups",
    "migrated_from_v1",
}


@pytest.mark.parametrize(
    ("name", "spec_version"),
    [case for case in reference_repositories.CASES if case[0] in STATES_OF_CHUNKS],
)
def test_arrays_of_reference_repositories_read_as_zarr_reads_them(built, name, spec_version):
    reference = built(name, spec_version)
    repository = Repository.open(str(reference.path))
    snapshot_id = repository.resolve(branch="main")
    store = reference.open().readonly_session("main").store
    arrays = [node for node in repository.snapshot(snapshot_id).nodes if node.array is not None]
    assert arrays
    for node in arrays:
        group, _, array_name = str(node.path).rpartition("/")
        dataset = open_dataset(
            repository, snapshot_id, group or "/", VirtualAccess(tuple(reference.virtual_prefixes))
        )
        expected = zarr.open_array(store, path=str(node.path)[1:], mode="r")[...]
        np.testing.assert_array_equal(dataset.read(array_name), expected)
        if expected.dtype.kind not in "biuf":
            continue
        table = dataset.table(variables=[array_name], decode_cf=False)
        plan = dataset.plan(table, rows_per_partition=500)
        batches = [b for task in plan.tasks for b in run_scan(plan.context, task)]
        rows = pa.Table.from_batches(batches, schema=plan.arrow_schema)
        names = {node.path for node in arrays}
        labels = [
            zarr.open_array(store, path=f"{group[1:]}/{dim}".strip("/"), mode="r")[...]
            if f"{group}/{dim}" in names
            else np.arange(size)
            for dim, size in zip(table.dims, expected.shape, strict=True)
        ]
        columns = [*table.dims, array_name]
        frame = pd.DataFrame(
            {
                name: np.ravel(column)
                for name, column in zip(
                    columns, [*np.meshgrid(*labels, indexing="ij"), expected], strict=True
                )
            }
        )
        found = rows.to_pandas()[list(dict.fromkeys(columns))]
        assert_same_rows(found, frame, list(table.dims))


def test_virtual_references_are_listed_without_authorization_but_not_fetched(built):
    reference = built("virtual_chunks", 2)
    repository = Repository.open(str(reference.path))
    snapshot_id = repository.resolve(branch="main")
    dataset = open_dataset(repository, snapshot_id)
    plan = dataset.plan(dataset.table("refs", variables=["data"]))
    rows = pa.Table.from_batches(
        [b for task in plan.tasks for b in run_scan(plan.context, task)]
    ).to_pylist()
    assert [row["kind"] for row in rows] == ["virtual"] * 4 + ["native"]
    assert all(row["location"].startswith("file://") for row in rows[:4])
    assert rows[4]["location"] is None
    assert {row["length"] for row in rows} == {2000}
    assert rows[0]["last_modified"] is None
    assert rows[2]["last_modified"] is not None
    plan = dataset.plan(dataset.table(variables=["data"]))
    with pytest.raises(UnauthorizedVirtualChunkError):
        list(run_scan(plan.context, plan.tasks[0]))
