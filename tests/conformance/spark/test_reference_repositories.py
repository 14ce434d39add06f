"""Every version of every repository that the reference wrote reads the same through Spark.

What ``spark.read.format("icechunk")`` returns is compared with what zarr-python and xarray return
through the reference library: the cells of every array of every group, for every snapshot that a
branch, a tag or an instant leads to; and for the newest ones the chunks, the chunk references and
the aggregates of blocks.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import pytest
from helpers.grids.cell_grids import assert_cells
from helpers.grids.zarr_grids import Grid, at_once, grids_of, groups_of, load
from helpers.reference import repositories as reference_repositories
from pyspark.errors import AnalysisException

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import zarr
    from helpers.reference.repositories import ReferenceRepository
    from pyspark.sql import DataFrame


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
