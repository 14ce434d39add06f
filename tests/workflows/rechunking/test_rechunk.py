"""Rechunked arrays hold the same bits, whatever the grids, in one process and by pieces."""

import math
import pickle
import random
import tracemalloc

import numpy as np
import pytest
from helpers.effort import counted_lines

from icechunk_format.errors import ConflictError, InvalidInputError, NotFoundError
from icechunk_format.grid.groups import Groups, join, windows
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.values import parse_byte_size
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.repository.chunks import ChunkSource
from icechunk_format.storage.location import Location
from icechunk_format.storage.measures import measured
from icechunk_format.tables import open_dataset
from icechunk_format.workflows.rechunking.rechunk import (
    RechunkRequest,
    one_process,
    rechunk_arrays,
)
from icechunk_format.workflows.rechunking.run import (
    _compressed,
    _decompressed,
    cut_again,
    cut_group,
    write_groups,
)

from helpers.sessions.model import group_document  # isort: skip
from helpers.raised import raises

from icechunk_format.zarr.data_types import data_type_from_numpy, parse_data_type
from icechunk_format.zarr.new_nodes import build_array_metadata

STRING = parse_data_type("string", node_path="/")


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "repository")


def make(place, values, chunks, *, name="t", dims=None, fill=None, shards=None, drop=()):
    """Write an array chunk by chunk; `drop` are chunks that stay missing."""
    repository = Repository.find(place) or Repository.create(place)
    session = repository.writable_session()
    if session.node("/") is None:
        session.create_group("/", group_document())
    metadata = build_array_metadata(
        shape=values.shape,
        data_type=STRING if values.dtype.hasobject else data_type_from_numpy(values.dtype),
        chunk_shape=chunks,
        shard_shape=shards,
        fill_value=fill,
        dimension_names=dims or [f"d{axis}" for axis in range(values.ndim)],
        attributes={"units": "K"},
    )
    session.create_array(
        f"/{name}",
        metadata.to_bytes(),
        shape=values.shape,
        num_chunks=metadata.grid.num_chunks,
        dimension_names=metadata.dimension_names,
    )
    codecs = metadata.chunk_codecs()
    for at in np.ndindex(*metadata.grid.num_chunks):
        if at in drop:
            continue
        lower, upper = metadata.grid.box_of(at)
        whole = metadata.fill_array(metadata.grid.full_chunk_shape(at))
        part = values[(*map(slice, lower, upper), ...)]
        whole[(*(slice(0, n) for n in part.shape), ...)] = part
        session.set_chunk(f"/{name}", at, codecs.encode(whole))
    session.commit("made")
    return repository


def request(place, chunks, *, memory=1 << 29, target=None, options=None, **more):
    read = ("group", "variables", "branch", "snapshot", "sel", "isel")
    values = {
        "read": ReadRequest(path=place, **{n: more.pop(n) for n in read if n in more}),
        "target": Location.of(target or place),
        "options": options or WriteOptions(mode="append"),
        "chunks": chunks,
        "shards": None,
        "encoding": {},
        "memory": memory,
    }
    return RechunkRequest(**values | more)


def rechunked(wanted, run=one_process, *, cores=None, dry_run=False):
    return rechunk_arrays(wanted, run, cores=cores, dry_run=dry_run)


def by_pieces(work):
    """Run each step as Spark does: pieces of all groups of the source, sorted by group."""
    work = pickle.loads(pickle.dumps(work))
    receipts = []
    for path, plan in work.arrays.items():
        assert plan.kind == "shuffled"
        pieces = [p for n in range(len(plan.source)) for p in cut_group(work, (path, n))]
        random.Random(1).shuffle(pieces)
        pieces.sort(key=lambda piece: piece.group)
        if plan.middle is not None:
            pieces = sorted(cut_again(work, path, pieces), key=lambda piece: piece.group)
        receipts.append(write_groups(work, path, pieces))
    return receipts


def read(place, name="t", snapshot_id=None):
    repository = Repository.open(place)
    dataset = open_dataset(repository, snapshot_id or repository.resolve())
    return dataset.read(name), dataset.variables[name]


def same(place, values):
    """Check the values of the array, and return it."""
    found, variable = read(place)
    np.testing.assert_array_equal(found, values)
    return variable


@pytest.mark.parametrize("seed", range(40))
def test_random_grids_hold_the_same_bits(place, seed):
    rng = np.random.default_rng(seed)
    ndim = int(rng.integers(1, 4))
    shape = tuple(int(n) for n in rng.integers(1, 14, ndim))
    old, new = (tuple(int(rng.integers(1, n + 1)) for n in shape) for _ in range(2))
    values = rng.integers(0, 2**32, shape, dtype="u4").view("f4")  # NaN payloads among them
    count = [-(-n // c) for n, c in zip(shape, old, strict=True)]
    drop = [at for at in np.ndindex(*count) if rng.random() < 0.2]
    repository = make(place, values, old, drop=drop)
    before, variable = read(place)
    base = repository.resolve()
    run = by_pieces if seed % 2 else one_process
    sizes = {f"d{axis}": size for axis, size in enumerate(new)}
    cores = 2 if seed % 2 else None
    wanted = request(place, sizes, memory=int(rng.integers(4, 400)))
    began = measured()
    if old != new:
        with_pieces(wanted, run, cores)
        done = measured() - began
        if cores is not None:
            assert done.chunks_decoded == math.prod(count) - len(drop)
            assert done.chunks_encoded == len(stored_chunks(repository))
    after, now = read(place)
    assert after.tobytes() == before.tobytes()
    assert now.metadata.grid.chunk_shape == new
    assert now.metadata.attributes == {"units": "K"}
    assert read(place, snapshot_id=base)[1].metadata.grid == variable.metadata.grid


def stored_chunks(repository):
    counts = read(str(repository.location.url))[1].metadata.grid.num_chunks
    return repository.writable_session().chunk_refs("/t", [0] * len(counts), counts).coords


def with_pieces(wanted, run, cores):
    from icechunk_format.workflows.rechunking import plan

    if run is not by_pieces:
        return rechunked(wanted, run, cores=cores)
    with pytest.MonkeyPatch.context() as patch:
        # Sizes of tasks as of a large array.
        patch.setattr(plan, "_LEAST_TASK_BYTES", 1)
        patch.setattr(plan, "_LEAST_PIECE_BYTES", 0)
        patch.setattr(plan, "_TINY_PIECE_BYTES", 0)
        patch.setattr(plan, "_WAVES", 1000)

        def either(work):
            kinds = {p.kind for p in work.arrays.values()}
            return by_pieces(work) if kinds == {"shuffled"} else one_process(work)

        return rechunked(wanted, either, cores=cores)


@pytest.mark.parametrize("dtype", ["?", "f4", "c16", "M8[s]", "U100", "r300", "O"])
def test_pieces_are_small_and_hold_any_type(dtype):
    values = np.zeros((30, 40), "V300" if dtype == "r300" else dtype)
    values[3] = values.dtype.type(b"a") if dtype == "r300" else ("a" if dtype in "OU100" else 1)
    piece = values[2:20, ::-3]
    data = _compressed(np.ascontiguousarray(piece))
    after = _decompressed(data, values.dtype, piece.shape)
    assert after.dtype == values.dtype
    assert after.tolist() == piece.tolist()
    assert len(data) < max(piece.nbytes / 3, 60)


@pytest.mark.parametrize(
    "values",
    [
        np.array(3.5),
        np.zeros((0, 4), "i2"),
        np.array([["a", "longer"], ["", "é"]], dtype=object),
        np.array("a\0", dtype=object),
        np.array([1 + 2j, 3], "c8"),
        np.array([(1, 2.0)] * 5, dtype=[("a", "i2"), ("b", "f8")]),
    ],
    ids=["scalar", "empty", "strings", "string", "complex", "structs"],
)
def test_other_shapes_and_types(place, values):
    make(place, values, tuple(1 for _ in values.shape))
    target = f"{place}-copy"
    done = rechunked(request(place, {}, target=target))
    assert done.arrays == ("/t",)
    after = read(target)[0]
    assert after.shape == values.shape
    assert after.tolist() == values.tolist()


def test_shards_come_and_go(place):
    values = np.arange(240, dtype="f8").reshape(12, 20)
    make(place, values, (3, 5))
    rechunked(request(place, {"d0": 2, "d1": 5}, shards={"d0": 4, "d1": -1}))
    assert same(place, values).metadata.grid.chunk_shape == (4, 20)
    rechunked(request(place, {"d0": 12}))
    assert same(place, values).metadata.grid.chunk_shape == (12, 5)
    codecs = [{"name": "bytes", "configuration": {"endian": "big"}}]
    rechunked(request(place, {"d0": -1}, encoding={"t": {"codecs": codecs}}))
    assert same(place, values).metadata.raw["codecs"] == codecs


def test_labels_get_one_chunk_and_untouched_arrays_stay(place):
    make(place, np.arange(8.0), (2,), name="x", dims=["x"])
    make(place, np.arange(8.0) + 1, (2,), dims=["x"])
    make(place, np.arange(5.0), (1,), name="other", dims=["y"])
    repository = Repository.open(place)
    other = repository.snapshot(repository.resolve()).node("/other").id
    done = rechunked(request(place, {"x": 4}))
    assert set(done.arrays) == {"/t", "/x"}
    tip = repository.ancestry(branch="main")
    assert done.commit.message == next(iter(tip)).message == "Rechunk t, x"
    assert read(place, "x")[1].metadata.grid.chunk_shape == (8,)
    assert repository.snapshot(repository.resolve()).node("/other").id == other
    again = rechunked(request(place, {"x": 4}))
    assert again.commit.is_skipped


def test_a_rival_that_changes_the_array_conflicts(place):
    repository = make(place, np.arange(8.0), (2,))

    def rivalled(work):
        receipts = list(one_process(work))
        session = repository.writable_session()
        session.delete_chunks("/t", [[0]])
        session.commit("rival")
        return receipts

    with pytest.raises(ConflictError):
        rechunked(request(place, {"d0": 4}), rivalled)
    assert read(place)[1].metadata.grid.chunk_shape == (2,)


def test_an_array_that_a_rival_drops_does_not_come_back(place):
    repository = make(place, np.arange(8.0), (2,))
    make(place, np.arange(8.0), (2,), name="other")

    def rivalled(work):
        receipts = list(one_process(work))
        repository.drop("/t")
        return receipts

    with raises(ConflictError, kinds=("REPLACED_NODE_DELETED",)):
        rechunked(request(place, {"d0": 4}), rivalled)
    assert Repository.open(place).snapshot(repository.resolve()).node("/t") is None


def test_a_group_of_another_length_is_refused_and_attributes_stay(place):
    repository = make(place, np.arange(8.0), (2,))
    session = repository.writable_session()
    session.create_group("/g", {"mine": 1})
    session.create_group("/free", {"mine": 1})
    document = build_array_metadata(
        shape=(3,), data_type=STRING, chunk_shape=(3,), dimension_names=["d0"]
    )
    session.create_array(
        "/g/other", document.to_bytes(), shape=(3,), num_chunks=(1,), dimension_names=["d0"]
    )
    session.commit("another group")
    base = repository.resolve()

    def never(work):
        raise AssertionError("refused before any task runs")

    for dry_run in (False, True):
        with raises(InvalidInputError, found="d0 is 8 in /g/t and 3 in /g/other"):
            wanted = request(place, {"d0": 4}, options=WriteOptions(mode="append", group="g"))
            rechunked(wanted, never, dry_run=dry_run)
    assert repository.resolve() == base
    rechunked(request(place, {"d0": 4}, options=WriteOptions(mode="append", group="free")))
    group = open_dataset(repository, Repository.open(place).resolve(), "/free")
    assert dict(group.attributes).get("mine") == 1
    assert group.read("t").tolist() == list(range(8))


def append(repository, values, at):
    """Make the array of 7 elements one of 12, and write its chunks from number `at` on."""
    session = repository.writable_session()
    metadata = read(str(repository.location.url), "t")[1].metadata.with_shape((12,))
    session.update_metadata("/t", metadata.to_bytes(), shape=(12,), num_chunks=(6,))
    for number in range(at, 6):
        part = values[2 * number : 2 * number + 2]
        session.set_chunk("/t", [number], metadata.chunk_codecs().encode(part))
    return session.commit("append")


@pytest.mark.parametrize("rival", ["append", "append twice", "append and fix", "attributes"])
@pytest.mark.parametrize("on_conflict", ["rebase", "fail"])
def test_an_append_beside_it_is_included(place, rival, on_conflict):
    repository = make(place, np.arange(7.0), (2,))
    after = np.arange(12.0)
    if rival == "append and fix":
        after[6] = -1  # its chunk held an element before
    runs = []

    def rivalled(work):
        receipts = list(one_process(work))
        if not runs and rival == "attributes":
            session = repository.writable_session()
            metadata = read(place)[1].metadata.with_attributes({"units": "degC"})
            session.update_metadata("/t", metadata.to_bytes(), shape=(7,), num_chunks=(4,))
            session.commit("rival")
        elif not runs:
            append(repository, after, 3)
        elif len(runs) == 1 and rival == "append twice":
            longer = read(place)[1].metadata.with_shape((13,))
            session = repository.writable_session()
            session.update_metadata("/t", longer.to_bytes(), shape=(13,), num_chunks=(7,))
            session.commit("append")
        runs.append(work.source.snapshot_id)
        return receipts

    wanted = request(place, {"d0": 4}, options=WriteOptions(mode="append", on_conflict=on_conflict))
    if on_conflict == "fail" or rival in ("append and fix", "attributes"):
        with pytest.raises(ConflictError):
            rechunked(wanted, rivalled)
        assert len(runs) == 1
        assert read(place)[1].metadata.grid.chunk_shape == (2,)
        return
    rechunked(wanted, rivalled)
    values, variable = read(place)
    assert variable.metadata.grid.chunk_shape == (4,)
    assert len(set(runs)) == len(runs) == (3 if rival == "append twice" else 2)
    np.testing.assert_array_equal(values, [*after, 0] if rival == "append twice" else after)


def test_a_plan_of_a_large_array_costs_no_more_than_its_axes():
    shape, old, new = (394_488, 778, 706), (24, 778, 706), (43_800, 5, 5)
    source, target = (
        [np.append(np.arange(0, n, c), n) for n, c in zip(shape, sizes, strict=True)]
        for sizes in (old, new)
    )
    common = windows(source, target)
    elements = (512 << 20) // 4
    groups, parts = join(target, source, common, elements), join(source, target, common, elements)
    assert max(groups.largest, parts.largest) <= elements
    pieces = [box for _, box in groups.meeting(parts.box(7))]
    sizes = [4 * np.prod(np.subtract(high, low)) for low, high in pieces]
    assert 256 << 10 < np.mean(sizes) < 16 << 20
    # A group of the source lies in one window.
    assert all(edge in parts.edges[0] for edge in common.edges[0])


def test_groups_cover_each_element_once():
    rng = np.random.default_rng(5)
    for _ in range(200):
        size = int(rng.integers(1, 60))
        source, target = (
            [np.append(np.arange(0, size, int(rng.integers(1, size + 1))), size)] for _ in range(2)
        )
        common = windows(source, target)
        parts = join(source, target, common, int(rng.integers(1, size + 1)))
        groups = join(target, source, common, int(rng.integers(1, size + 1)))
        seen = np.zeros(size, int)
        for number in range(len(parts)):
            for group, (lower, upper) in groups.meeting(parts.box(number)):
                assert groups.box(group)[0][0] <= lower[0] < upper[0] <= groups.box(group)[1][0]
                seen[lower[0] : upper[0]] += 1
        assert (seen == 1).all()
        assert np.isin(parts.edges[0], source[0]).all()
        assert np.isin(groups.edges[0], target[0]).all()
    assert len(Groups(())) == 1


def test_bad_arguments_are_named(place):
    make(place, np.arange(8.0), (2,))
    for chunks, more, error, facts in [
        ({"dd": 2}, {}, InvalidInputError, {"dimension": "dd"}),
        ({"d0": 0}, {}, InvalidInputError, {"dimension": "d0"}),
        ({"d0": 2}, {"variables": ["u"]}, NotFoundError, {"name": "u"}),
        ({"d0": 2}, {"encoding": {"t": {"dtype": "f4"}}}, InvalidInputError, {"variable": "t"}),
        ({"d0": 2}, {"encoding": {"u": {"codecs": []}}}, InvalidInputError, {"variable": "u"}),
    ]:
        with raises(error, **facts):
            rechunked(request(place, chunks, **more), dry_run=True)


@pytest.mark.parametrize("seed", range(12))
def test_a_part_is_cut_from_all_arrays(place, seed):
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(2, 12, 2))
    old, new = (tuple(int(rng.integers(1, n + 1)) for n in shape) for _ in range(2))
    values = rng.integers(0, 2**32, shape, dtype="u4").view("f4")
    make(place, values, old)
    make(place, np.arange(shape[0]) * 2.0, (shape[0],), name="d0", dims=["d0"])
    low = [int(rng.integers(0, n)) for n in shape]
    high = [int(rng.integers(a + 1, n + 1)) for a, n in zip(low, shape, strict=True)]
    target = f"{place}-part"
    wanted = request(
        place,
        {"d0": new[0], "d1": new[1]},
        memory=int(rng.integers(4, 400)),
        target=target,
        sel={"d0": slice(low[0] * 2.0, high[0] * 2.0 - 1)},
        isel={"d1": slice(low[1], high[1])},
    )
    with_pieces(wanted, by_pieces if seed % 2 else one_process, 2 if seed % 2 else None)
    found, variable = read(target)
    assert found.tobytes() == values[low[0] : high[0], low[1] : high[1]].tobytes()
    assert variable.shape == found.shape
    np.testing.assert_array_equal(read(target, "d0")[0], np.arange(low[0], high[0]) * 2.0)
    with pytest.raises(InvalidInputError, match="in place"):
        rechunked(request(place, {"d0": 1}, isel={"d1": 0}), dry_run=True)


@pytest.mark.parametrize("seed", range(8))
def test_small_pieces_go_through_groups_in_between(place, seed, monkeypatch):
    from icechunk_format.workflows.rechunking import plan

    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(20, 45, 2))
    values = rng.integers(0, 2**32, shape, dtype="u4").view("f4")
    values[3:9] = 0  # nothing is sent of these
    make(place, values, (1, shape[1]))
    monkeypatch.setattr(plan, "_LEAST_TASK_BYTES", 1)
    monkeypatch.setattr(plan, "_TINY_PIECE_BYTES", 0)
    wanted = request(place, {"d0": -1, "d1": int(rng.integers(1, 3))}, memory=4 * max(shape))
    planned = rechunked(wanted, by_pieces, cores=2, dry_run=True)
    assert planned.rounds == 2
    assert planned.buffer_bytes <= 4 * 2 * max(shape)
    assert planned.shuffled_bytes == 2 * values.nbytes
    sent = []

    def counted(work):
        [(path, own)] = work.arrays.items()
        first = [p for n in range(len(own.source)) for p in cut_group(work, (path, n))]
        first.sort(key=lambda piece: piece.group)
        sent.extend([len(first), len(list(cut_again(work, path, first)))])
        return by_pieces(work)

    done = rechunked(wanted, counted, cores=2)
    assert sum(sent) <= done.pieces < shape[0] * shape[1]
    assert read(place)[0].tobytes() == values.tobytes()


def test_the_plan_of_a_huge_array_is_fast_and_small(place):
    shape, old, new = (394_488, 778, 706), (24, 778, 706), {"d0": 43_800, "d1": 5, "d2": 5}
    make(place, np.broadcast_to(np.float32(0), shape), old, drop=Everything())
    for memory in ("512m", "16m"):
        tracemalloc.start()
        wanted = request(place, new, memory=parse_byte_size("memory", memory), target=f"{place}-to")
        planned, lines = counted_lines(lambda: rechunked(wanted, cores=64, dry_run=True))  # noqa: B023
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert lines < 2_000_000  # the array has 5 million chunks
        assert peak < 300 << 20
        size = planned.shuffled_bytes / planned.pieces
        # Chunks of the source are larger than the smaller memory.
        assert (256 if memory == "512m" else 128) << 10 < size < 16 << 20
        assert planned.rounds == (1 if memory == "512m" else 2)


class Everything:
    """A container of all chunks."""

    def __contains__(self, at):
        return True


@pytest.mark.parametrize("memory", [40 * 8, 200 * 8, 1 << 20])
def test_one_process_promises_the_chunks_that_it_reads(place, memory):
    values = np.arange(1, 401.0).reshape(20, 20)
    make(place, values, (1, 20))
    wanted = request(place, {"d0": -1, "d1": 2}, memory=memory, target=f"{place}-to")
    planned = rechunked(wanted, dry_run=True)
    before = measured()
    rechunked(wanted)
    done = measured() - before
    assert done.chunks_decoded + done.chunks_encoded == planned.requests
    if memory == 1 << 20:
        assert done.chunks_decoded == 20


def test_encoded_chunks_are_held_in_batches(place, monkeypatch):
    values = np.random.default_rng(1).random((16, 1024))
    make(place, values, (1, 1024))
    held = []
    fetch = ChunkSource.fetch

    def noted(self, refs, rows, ranges=None):
        found = fetch(self, refs, rows, ranges)
        held.append(sum(map(len, found)))
        return found

    monkeypatch.setattr(ChunkSource, "fetch", noted)
    chunk = 8 * 1024
    rechunked(request(place, {"d0": -1, "d1": 2}, memory=3 * chunk, target=f"{place}-to",
                      isel={"d1": slice(0, 2)}))  # fmt: skip
    assert max(held) <= 3 * chunk
    found = open_dataset(Repository.open(f"{place}-to"), Repository.open(f"{place}-to").resolve())
    np.testing.assert_array_equal(found.read("t"), values[:, :2])
