"""Every version of every repository that the reference wrote reads the same through Spark.

What ``spark.read.format("icechunk")`` returns is compared with what zarr-python and xarray return
through the reference library: the cells of every array of every group, for every snapshot that a
branch, a tag or an instant leads to; and for the newest ones the chunks, the chunk references and
the aggregates of blocks. A last repository holds every data type and every codec.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import pytest
import reference_repositories
import xarray as xr
import zarr
import zarr.codecs as zc
from cell_grids import assert_cells
from pyspark.errors import AnalysisException
from reference_repositories import ReferenceRepository
from zarr.codecs import numcodecs as zn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr:UserWarning"),
]

KINDS = ("native", "inline", "virtual")
CASES = [f"{name}-v{version}" for name, version in reference_repositories.CASES]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Callable[[str], ReferenceRepository]:
    """Build each state once, however many tests read it."""
    directory = tmp_path_factory.mktemp("reference")

    @functools.cache
    def build(case: str) -> ReferenceRepository:
        name, _, version = case.rpartition("-v")
        return reference_repositories.build(name, int(version), directory)

    return build


@pytest.fixture(params=CASES)
def reference(request, built) -> ReferenceRepository:
    return built(request.param)


# --- what the reference says ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The arrays of one group that share their dimensions, as zarr-python reads them."""

    group: str
    labels: dict[str, np.ndarray]
    arrays: dict[str, zarr.Array]
    is_only_one: bool
    """Whether a reader who names neither group nor variables gets these."""

    @property
    def values(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(array[...]) for name, array in self.arrays.items()}

    @property
    def options(self) -> dict[str, str]:
        """What a reader has to say to get these arrays."""
        if self.is_only_one:
            return {}
        return {"group": self.group, "variables": ",".join(self.arrays)}


def dims_of(array: zarr.Array) -> tuple[str, ...]:
    names = array.metadata.dimension_names or (None,) * array.ndim
    return tuple(name or f"dim_{axis}" for axis, name in enumerate(names))


def groups_of(store: Any) -> dict[str, dict[str, zarr.Array]]:
    """Return the arrays of each group that has some, sorted by name."""
    try:
        root = zarr.open_group(store, mode="r")
    except FileNotFoundError:
        return {}
    found: dict[str, dict[str, zarr.Array]] = {}
    for path, array in sorted(root.members(max_depth=None)):
        if isinstance(array, zarr.Array):
            group, _, name = path.rpartition("/")
            found.setdefault("/" + group, {})[name] = array
    return found


def grids_of(store: Any) -> Iterator[Grid]:
    groups = groups_of(store)
    for group, arrays in groups.items():
        sets: dict[tuple[tuple[str, int], ...], dict[str, zarr.Array]] = {}
        for name, array in arrays.items():
            if dims_of(array) != (name,):
                key = tuple(zip(dims_of(array), array.shape, strict=True))
                sets.setdefault(key, {})[name] = array
        for dimensions, members in sets.items():
            yield Grid(
                group=group,
                labels={
                    dim: np.asarray(arrays[dim][...]) if dim in arrays else np.arange(size)
                    for dim, size in dimensions
                },
                arrays=members,
                is_only_one=len(sets) == 1 and len(groups) == 1,
            )


def ways_to_snapshots(reference: ReferenceRepository) -> dict[str, list[dict[str, str]]]:
    """Return the options that lead to each snapshot: branches, tags, instants, or its own id."""
    theirs = reference.open()
    ways: dict[str, list[dict[str, str]]] = {}
    for name in sorted(theirs.list_branches()):
        ways.setdefault(theirs.lookup_branch(name), []).append({"branch": name})
    for name in sorted(theirs.list_tags()):
        ways.setdefault(theirs.lookup_tag(name), []).append({"tag": name})
    for name in sorted(theirs.list_branches()):
        for info in theirs.ancestry(branch=name):
            if info.id not in ways:
                ways[info.id] = [{"branch": name, "asOf": info.written_at.isoformat()}]
    # Snapshots that no history leads to: amended, flushed, cut off by an expiration.
    for snapshot_id in reference.snapshots.values():
        ways.setdefault(snapshot_id, [{"snapshot": snapshot_id}])
    return ways


def load(
    spark: SparkSession, reference: ReferenceRepository, layout: str = "cells", **options: Any
) -> DataFrame:
    if layout != "refs" and reference.virtual_prefixes:
        options["virtual.authorize"] = ",".join(reference.virtual_prefixes)
    return spark.read.format("icechunk").load(reference.url, layout=layout, **options)


def at_once(action: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Do something for each item in a few threads: small Spark jobs wait more than they work."""
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(action, items):
            pass


# --- cells, of every version ------------------------------------------------------------------


def test_every_version_has_the_same_cells(spark, reference, last_line):
    theirs = reference.open()
    compared = []
    for snapshot_id, ways in ways_to_snapshots(reference).items():
        try:
            session = theirs.readonly_session(snapshot_id=snapshot_id)
        except icechunk.IcechunkError:
            # Garbage collection took it; it must not seem to exist here either.
            with pytest.raises(AnalysisException, match=snapshot_id):
                load(spark, reference, snapshot=snapshot_id)
            continue
        grids = list(grids_of(session.store))
        if not grids and "asOf" not in ways[0] and "branch" in ways[0]:
            assert "no array" in last_line(lambda way=ways[0]: load(spark, reference, **way))
        # Every way is gone at least once; where there are many grids, they take turns.
        compared += _pairs(grids, ways)

    def compare(pair: tuple[Grid, dict[str, str]]) -> None:
        grid, way = pair
        found = load(spark, reference, **way, **grid.options, decodeCf="false").toArrow()
        assert_cells(found, grid.labels, grid.values, decoded=False)

    at_once(compare, compared)


def _pairs(grids: list[Grid], ways: list[dict[str, str]]) -> Iterator[tuple[Grid, dict[str, str]]]:
    if grids:
        rounds = range(max(len(grids), len(ways)))
        yield from ((grids[i % len(grids)], ways[i % len(ways)]) for i in rounds)


# --- the other layouts, of the newest versions ------------------------------------------------


def union_all(frames: list[DataFrame]) -> DataFrame:
    """Put frames of one schema into one job: starting jobs is what these tests wait for."""
    return functools.reduce(lambda first, second: first.union(second), frames)


def newest(theirs: icechunk.Repository) -> list[tuple[dict[str, Any], icechunk.Session]]:
    """Return the tips of branches that hold arrays, each once."""
    tips: dict[str, str] = {}
    for name in sorted(theirs.list_branches()):
        tips.setdefault(theirs.lookup_branch(name), name)
    found = [({"branch": name}, theirs.readonly_session(branch=name)) for name in tips.values()]
    return [(way, session) for way, session in found if groups_of(session.store)]


def test_chunks_hold_the_same_elements(spark, reference):
    for way, session in newest(reference.open()):
        groups = groups_of(session.store)
        frames = [
            load(spark, reference, "chunks", **way, group=group, variables=",".join(arrays))
            for group, arrays in groups.items()
        ]
        arrays = {path: a for of_group in groups.values() for path, a in _by_path(of_group)}
        seen = {path: np.zeros(array.shape, dtype=int) for path, array in arrays.items()}
        for row in union_all(frames).toArrow().to_pylist():
            array = arrays[row["array"]]
            box = tuple(
                slice(start, start + size)
                for start, size in zip(row["start"], row["shape"], strict=True)
            )
            found = np.frombuffer(row["data"], dtype=row["dtype"]).reshape(row["shape"])
            np.testing.assert_array_equal(found, array[box], err_msg=row["array"])
            assert found.dtype == array.dtype
            seen[row["array"]][box] += 1
        for path, times in seen.items():
            assert (times == 1).all(), path


def _by_path(arrays: dict[str, zarr.Array]) -> Iterator[tuple[str, zarr.Array]]:
    return (("/" + array.path.strip("/"), array) for array in arrays.values())


def test_references_are_the_same(spark, reference):
    for way, session in newest(reference.open()):
        groups = groups_of(session.store)
        frames = [load(spark, reference, "refs", **way, group=group) for group in groups]
        rows = union_all(frames).toArrow().to_pylist()
        found = {(row["array"], tuple(row["chunk"])): row for row in rows}
        assert len(found) == len(rows)
        expected = asyncio.run(_references(session, groups))
        assert {key: row["kind"] for key, row in found.items()} == expected
        native = [row for row in rows if row["kind"] == "native"]
        for row in native:
            file = reference.path / "chunks" / row["chunk_id"]
            assert row["offset"] + row["length"] <= file.stat().st_size
        virtual = [row for row in rows if row["kind"] == "virtual"]
        locations = [_absolute(row["location"], reference) for row in virtual]
        assert sorted(locations) == sorted(session.all_virtual_chunk_locations())
        assert all(row["location"] is None for row in native)


def _absolute(location: str, reference: ReferenceRepository) -> str:
    """Expand the name of a container: the reference does when it lists, we show what is stored."""
    if location.startswith("vcc://sources/"):
        return reference.virtual_prefixes[0] + location.removeprefix("vcc://sources/")
    return location


async def _references(
    session: icechunk.Session, groups: dict[str, dict[str, zarr.Array]]
) -> dict[tuple[str, tuple[int, ...]], str]:
    found = {}
    for arrays in groups.values():
        for path, _ in _by_path(arrays):
            async for coords in session.chunk_coordinates(path):
                kind = await session.chunk_type_async(path, coords)
                found[path, tuple(coords)] = next(
                    name for name in KINDS if kind == getattr(icechunk.ChunkType, name)
                )
    return found


def test_blocks_add_up_to_the_same(spark, reference):
    def compare(item: tuple[dict[str, Any], Grid]) -> None:
        way, grid = item
        frame = load(spark, reference, "summary", **way, **grid.options)
        rows = frame.toArrow().to_pandas()
        for name, values in grid.values.items():
            _assert_adds_up(rows, name, values)

    tips = newest(reference.open())
    at_once(compare, [(way, grid) for way, session in tips for grid in grids_of(session.store)])


def _assert_adds_up(rows: Any, name: str, values: np.ndarray) -> None:
    present = values[~np.isnan(values)].astype("float64")
    counts = rows[f"{name}_count"]
    assert counts.sum() == len(present)
    assert rows[f"{name}_nulls"].sum() == values.size - len(present)
    if not len(present):
        return
    assert rows[f"{name}_min"].min() == present.min()
    assert rows[f"{name}_max"].max() == present.max()
    np.testing.assert_allclose(rows[f"{name}_sum"].sum(), present.sum(), rtol=1e-9)
    rows = rows[counts > 0]
    mean = (rows[f"{name}_mean"] * rows[f"{name}_count"]).sum() / counts.sum()
    np.testing.assert_allclose(mean, present.mean(), rtol=1e-9)
    between = (rows[f"{name}_count"] * (rows[f"{name}_mean"] - mean) ** 2).sum()
    spread = rows[f"{name}_m2"].sum() + between
    np.testing.assert_allclose(spread / len(present), present.var(), rtol=1e-6, atol=1e-12)


# --- choosing a version -----------------------------------------------------------------------


def test_a_deleted_tag_is_gone_and_its_error_lists_the_others(spark, built, last_line):
    for case in ("branches_and_tags-v1", "branches_and_tags-v2"):
        message = last_line(lambda case=case: load(spark, built(case), tag="withdrawn"))
        assert "'withdrawn'" in message
        assert "deleted" in message
        assert "v1.0, v2.0" in message


def test_instants_choose_the_snapshot_that_the_reference_chooses(spark, built, last_line):
    for case in ("linear_history-v1", "linear_history-v2"):
        theirs = built(case).open()
        history = list(theirs.ancestry(branch="main"))
        for newer, older in itertools.pairwise(history[:3]):
            instant = older.written_at + (newer.written_at - older.written_at) / 2
            frame = load(spark, built(case), asOf=instant.isoformat(), decodeCf="false")
            session = theirs.readonly_session("main", as_of=instant)
            [grid] = grids_of(session.store)
            assert_cells(frame.toArrow(), grid.labels, grid.values, decoded=False)
        before = (history[-1].written_at - timedelta(days=1)).isoformat()
        assert "main" in last_line(lambda case=case, at=before: load(spark, built(case), asOf=at))


# --- every data type and every codec ----------------------------------------------------------

NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
OTHERS = {
    "datetime_ns": "<M8[ns]",
    "datetime_s": "<M8[s]",
    "datetime_days": "<M8[D]",
    "timedelta_10s": "<m8[10s]",
    "timedelta_us": "<m8[us]",
    "utf32": "<U4",
    "text": "string",
    "bytes_fixed": "S5",
    "bytes_variable": "variable_length_bytes",
    "raw": "V3",
    "struct": [("a", "<i4"), ("b", "<f8"), ("c", "S3"), ("d", "<M8[s]")],
    "int32_big": ">i4",
    "float64_big": ">f8",
}
COMPRESSORS: dict[str, list[Any]] = {
    "none": [],
    "zstd": [zc.ZstdCodec(level=1)],
    "zstd_checksum": [zc.ZstdCodec(level=-3, checksum=True)],
    "gzip": [zc.GzipCodec(level=1)],
    **{
        f"blosc_{name}_{shuffle}": [zc.BloscCodec(cname=name, shuffle=shuffle)]
        for name, shuffle in (
            ("blosclz", "shuffle"),
            ("lz4", "bitshuffle"),
            ("lz4hc", "noshuffle"),
            ("zlib", "shuffle"),
            ("zstd", "bitshuffle"),
        )
    },
    "crc32c": [zc.Crc32cCodec()],
    "zstd_crc32c": [zc.ZstdCodec(), zc.Crc32cCodec()],
    "n_zstd": [zn.Zstd(level=2)],
    "n_gzip": [zn.GZip(level=1)],
    "n_blosc": [zn.Blosc(cname="lz4")],
    "n_zlib": [zn.Zlib(level=1)],
    "n_lz4": [zn.LZ4()],
    "n_bz2": [zn.BZ2(level=1)],
    "n_lzma": [zn.LZMA(preset=0)],
    "n_shuffle": [zn.Shuffle(), zn.Zlib()],
    "n_crc32": [zn.CRC32()],
    "n_crc32c": [zn.CRC32C()],
    "n_adler32": [zn.Adler32(location="end")],
    "n_fletcher32": [zn.Fletcher32()],
    "n_jenkins": [zn.JenkinsLookup3(initval=3)],
}
FILTERS: dict[str, tuple[str, Any]] = {
    "transpose": ("float32", zc.TransposeCodec(order=(1, 0))),
    "n_delta": ("int32", zn.Delta(dtype="<i4")),
    "n_fixedscaleoffset": ("float64", zn.FixedScaleOffset(offset=0, scale=10, astype="<i2")),
    "n_astype": ("int32", zn.AsType(encode_dtype="<i8", decode_dtype="<i4")),
    "n_bitround": ("float32", zn.BitRound(keepbits=8)),
    "n_quantize": ("float64", zn.Quantize(digits=3)),
    "n_packbits": ("bool", zn.PackBits()),
    "scale_offset": ("int16", zc.ScaleOffset(offset=5, scale=3)),
    "scale_offset_float": ("float32", zc.ScaleOffset(offset=-2.5, scale=0.25)),
}
if importlib.util.find_spec("cast_value_rs") is not None:
    # zarr-python needs this wheel to cast.
    FILTERS["cast_value"] = ("float64", zc.CastValue(data_type="int16", rounding="nearest-even"))
SHAPE, CHUNKS = (5, 4), (2, 3)


def values_of(dtype: Any, seed: int) -> np.ndarray:
    """Return random elements of a type, NaN and the ends of its range among them."""
    rng = np.random.default_rng(seed)
    if dtype in ("string", "variable_length_bytes"):
        words = ["", "é漢a", "😀", "plain", "tab\t"] if dtype == "string" else [b"", b"\0a", b"xyz"]
        return np.array(words, dtype=object)[rng.integers(0, len(words), SHAPE)]
    numpy_dtype = np.dtype(dtype)
    if numpy_dtype.names is not None:
        out = np.zeros(SHAPE, numpy_dtype)
        for name in numpy_dtype.names:
            out[name] = values_of(numpy_dtype[name], seed)
        return out
    kind = numpy_dtype.kind
    if kind == "b":
        return rng.integers(0, 2, SHAPE).astype(bool)
    if kind in "iu":
        ends = np.iinfo(numpy_dtype)
        out = rng.integers(ends.min, ends.max, SHAPE, endpoint=True, dtype=numpy_dtype.name)
        out[0, :2] = ends.min, ends.max
        return out.astype(numpy_dtype)
    if kind in "fc":
        out = rng.normal(0, 100, SHAPE).astype(numpy_dtype)
        out[0] = np.nan, np.inf, -np.inf, -0.0
        return out
    if kind in "mM":
        step = {"ns": 10**9, "us": 10**6}.get(np.datetime_data(numpy_dtype)[0], 1)
        out = (rng.integers(-(10**5), 10**5, SHAPE) * step).astype(numpy_dtype)
        out[1, 1] = "NaT"
        return out
    letters = np.array(list("aé漢😀z" if kind == "U" else "abcde"))
    width = numpy_dtype.itemsize // (4 if kind == "U" else 1)
    words = ["".join(letters[rng.integers(0, 5, width)]) for _ in range(20)]
    if kind == "U":
        return np.array(words, numpy_dtype).reshape(SHAPE)
    return np.array([word.encode() for word in words], f"S{width}").view(numpy_dtype).reshape(SHAPE)


def _add(group: zarr.Group, name: str, dtype: Any, values: np.ndarray, **how: Any) -> None:
    how = {"chunks": CHUNKS, "shape": SHAPE, **how}
    dtype = (
        dtype if isinstance(dtype, str) and not dtype.startswith(("<", ">")) else np.dtype(dtype)
    )
    array = group.create_array(name, dtype=dtype, dimension_names=("y", "x"), **how)
    # The last row lies in chunks of its own, which are never written.
    array[:4] = values[:4]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory) -> Iterator[ReferenceRepository]:
    # zarr-python reads rectilinear grids only where this is set.
    with zarr.config.set({"array.rectilinear_chunks": True}):
        yield build_zoo(tmp_path_factory.mktemp("zoo") / "zoo")


def build_zoo(directory: Path) -> ReferenceRepository:
    """Every data type, plain and in shards; every number through every compressor; filters."""
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(directory)))
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    types, shards, filters, grids = map(
        root.create_group, ("types", "shards", "filters", "rectilinear")
    )
    kinds = {name: name for name in NUMBERS} | OTHERS
    for seed, (name, dtype) in enumerate(kinds.items()):
        values = values_of(dtype, seed)
        _add(types, name, dtype, values)
        location = ("start", "end")[seed % 2]
        shard = {"shape": (4, 4), "index_location": location}
        _add(shards, name, dtype, values, chunks=(2, 2), shards=shard)
    for number, name in enumerate(NUMBERS):
        through = root.create_group(f"compressors/{name}")
        values = values_of(name, 50 + number)
        for codec, compressors in COMPRESSORS.items():
            _add(through, codec, name, values, compressors=compressors)
    small = (np.arange(20).reshape(SHAPE) % 13).astype("float64")
    for name, (dtype, codec) in FILTERS.items():
        _add(filters, name, dtype, small.astype(dtype), filters=[codec])
    for name, chunks in (("even", [[1, 4], [3, 1]]), ("single", [[2, 2, 1], [1, 1, 1, 1]])):
        _add(grids, name, "int32", values_of("int32", 3), chunks=chunks)
    built = ReferenceRepository(path=directory, spec_version=2)
    built.snapshots["zoo"] = session.commit("every data type and every codec")
    return built


def test_every_data_type_and_codec_has_the_same_cells(spark, zoo):
    def compare(grid: Grid) -> None:
        found = load(spark, zoo, group=grid.group, decodeCf="false").toArrow()
        assert_cells(found, grid.labels, grid.values, decoded=False)

    grids = list(grids_of(zoo.open().readonly_session("main").store))
    at_once(compare, grids)
    types, codecs = len(NUMBERS) + len(OTHERS), len(NUMBERS) * len(COMPRESSORS) + len(FILTERS)
    assert sum(len(grid.arrays) for grid in grids) == 2 * types + codecs + 2


def test_every_data_type_has_the_values_that_xarray_decodes(spark, zoo):
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
