"""Deleted labels and cells are gone, everything else stays, whatever the grids."""

import itertools
import pickle

import icechunk
import numpy as np
import pytest
import zarr
from helpers.raised import raises
from helpers.sessions.model import group_document

from icechunk_format.errors import ConflictError, InvalidInputError, NotFoundError
from icechunk_format.grid.axes import RunAxis
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.storage.local.store import LocalStorage
from icechunk_format.tables import open_dataset
from icechunk_format.tables.writing.cells import regions
from icechunk_format.workflows.deleting import DeleteRequest, delete_selected, labels
from icechunk_format.zarr.chunk_grid import ChunkGrid
from icechunk_format.zarr.data_types import data_type_from_numpy
from icechunk_format.zarr.new_nodes import build_array_metadata
from icechunk_format.zarr.zarr_json import dump_document, parse_array_metadata


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "repository")


def pickled(function, tasks):
    """Run each task as Spark does, out of order."""
    function = pickle.loads(pickle.dumps(function))
    return [pickle.loads(pickle.dumps(function(task))) for task in reversed(list(tasks))]


def put(
    session,
    name,
    values,
    chunks,
    dims,
    *,
    fill=None,
    shards=None,
    attributes=None,
    drop=(),
    edges=None,
):
    metadata = build_array_metadata(
        shape=values.shape,
        data_type=data_type_from_numpy(values.dtype),
        chunk_shape=chunks,
        shard_shape=shards,
        fill_value=fill,
        dimension_names=dims,
        attributes=attributes or {},
    )
    if edges is not None:
        axes = [RunAxis.of_edges(np.array(edge)) for edge in edges]
        document = {**metadata.raw, "chunk_grid": ChunkGrid(axes).to_json()}
        metadata = parse_array_metadata(dump_document(document), node_path=f"/{name}")
    session.create_array(
        f"/{name}",
        metadata.to_bytes(),
        shape=values.shape,
        num_chunks=metadata.grid.num_chunks,
        dimension_names=metadata.dimension_names,
    )
    codecs = metadata.chunk_codecs()
    for at in np.ndindex(*metadata.grid.num_chunks):
        if at not in drop:
            whole = metadata.fill_array(metadata.grid.full_chunk_shape(at))
            lower, upper = metadata.grid.box_of(at)
            part = values[tuple(map(slice, lower, upper))]
            whole[tuple(slice(0, n) for n in part.shape)] = part
            session.set_chunk(f"/{name}", at, codecs.encode(whole))


def made(place, *arrays):
    """Create a repository; `arrays` are functions of a session."""
    repository = Repository.create(place)
    session = repository.writable_session()
    if session.node("/") is None:
        session.create_group("/", group_document())
    for array in arrays:
        array(session)
    session.commit("made")
    return repository


def weather(place, times=6, chunks=(2, 2), fill=np.nan, dtype="f4", **more):
    values = np.arange(times * 4, dtype=dtype).reshape(times, 4)
    repository = made(
        place,
        lambda s: put(s, "time", np.arange(times) * 10, (times,), ["time"]),
        lambda s: put(s, "x", np.arange(4) * 1.0, (4,), ["x"]),
        lambda s: put(s, "t", values, chunks, ["time", "x"], fill=fill, **more),
    )
    return repository, values


def delete(place, *, run=pickled, variables=None, dry_run=False, options=None, **selecting):
    request = DeleteRequest(
        read=ReadRequest(path=place, variables=variables, **selecting),
        options=options or WriteOptions(mode="append"),
        dry_run=dry_run,
    )
    return delete_selected(request, run)


def read(place, name="t", snapshot_id=None):
    repository = Repository.open(place)
    return open_dataset(repository, snapshot_id or repository.resolve()).read(name)


@pytest.mark.parametrize("seed", range(60))
def test_labels_of_random_grids(place, seed, monkeypatch):
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(labels, "_TASK_REFS", int(rng.integers(1, 30)))
    monkeypatch.setattr(labels, "_TASK_BYTES", int(rng.integers(1, 2000)))
    ndim = int(rng.integers(1, 4))
    shape = tuple(int(n) for n in rng.integers(1, 13, ndim))
    chunks = tuple(int(rng.integers(1, n + 1)) for n in shape)
    axis, how = int(rng.integers(ndim)), seed % 3
    shards = tuple(2 * c for c in chunks) if how == 1 else None
    edges = None
    if how == 2:
        edges = [sorted({0, n, *rng.integers(0, n + 1, 4).tolist()}) for n in shape]
    values = rng.integers(0, 2**32, shape, dtype="u4").view("f4")
    outer = (
        [len(e) - 1 for e in edges]
        if edges
        else [-(-n // c) for n, c in zip(shape, shards or chunks, strict=True)]
    )
    drop = [at for at in np.ndindex(*outer) if rng.random() < 0.2]
    dims = [f"d{n}" for n in range(ndim)]
    made(
        place,
        lambda s: put(
            s, "t", values, chunks, dims, fill=np.nan, shards=shards, drop=drop, edges=edges
        ),
        lambda s: put(s, f"d{axis}", np.arange(shape[axis]) * 10, (3,), [f"d{axis}"]),
    )
    before, base = read(place), Repository.open(place).resolve()
    size = shape[axis]
    if rng.random() < 0.3:
        gone = np.arange(int(rng.integers(size)), size)
    else:
        gone = np.flatnonzero(rng.random(size) < rng.choice([0.1, 0.5, 0.9]))
        if not len(gone) or (len(gone) == size and ndim > 1 and size == 1):
            gone = np.array([int(rng.integers(size))])
    result = delete(place, isel={f"d{axis}": gone.tolist()})
    assert (result.dim, result.labels) == (f"d{axis}", len(gone))
    after = read(place)
    assert after.tobytes() == np.delete(before, gone, axis).tobytes()
    assert read(place, f"d{axis}").tolist() == np.delete(np.arange(size) * 10, gone).tolist()
    assert read(place, snapshot_id=base).tobytes() == before.tobytes()


def test_chunks_that_move_are_not_counted_as_written(place, tmp_path):
    """A moved chunk keeps its object, so only its reference is stored."""
    values = np.random.default_rng(0).random(4_000)
    made(place, lambda session: put(session, "x", values, (1_000,), ("t",)))
    objects = sorted((tmp_path / "repository" / "chunks").iterdir())
    done = delete(place, isel={"t": slice(0, 1_000)}).commit
    assert sorted((tmp_path / "repository" / "chunks").iterdir()) == objects
    assert (done.chunks, done.commit.files_written.get("chunks", 0)) == (3, 0)
    assert done.commit.bytes_written.get("chunks", 0) == 0
    assert np.array_equal(read(place, "x"), values[1_000:])


def test_chunks_that_keep_their_elements_are_not_written_again(place):
    _, values = weather(place, times=20)
    result = delete(place, where="time BETWEEN 40 AND 50")
    # Labels, one chunk.
    assert result.commit.commit.files_written.get("chunks", 0) <= 1
    assert np.array_equal(read(place), np.delete(values, [4, 5], 0))


def test_removed_values_do_not_come_back_when_an_array_grows(place):
    repository, values = weather(place, times=6, chunks=(4, 4))
    delete(place, where="time >= 50")
    node = repository.snapshot(Repository.open(place).resolve()).node("/t")
    metadata = parse_array_metadata(node.user_data, node_path="/t").with_shape((8, 4))
    session = Repository.open(place).writable_session()
    session.update_metadata("/t", metadata.to_bytes(), shape=(8, 4), num_chunks=(2, 1))
    session.commit("grow")
    assert np.isnan(read(place)[5:]).all()
    assert np.array_equal(read(place)[:5], values[:5])


@pytest.mark.parametrize("gone", [[1], [3], [2, 3]])
def test_removed_values_do_not_come_back_from_chunks_that_become_empty(place, gone):
    """The edge chunk has values of removed labels only, so nothing is written for it."""
    values = np.full((2, 4), np.nan, "f4")
    values[:, gone] = 7
    made(
        place,
        lambda s: put(s, "x", np.arange(4.0), (4,), ["x"]),
        lambda s: put(s, "t", values, (1, 3), ["time", "x"], fill=np.nan),
    )
    delete(place, isel={"x": gone})
    node = Repository.open(place).snapshot(Repository.open(place).resolve()).node("/t")
    metadata = parse_array_metadata(node.user_data, node_path="/t").with_shape((2, 4))
    session = Repository.open(place).writable_session()
    session.update_metadata("/t", metadata.to_bytes(), shape=(2, 4), num_chunks=(2, 2))
    session.commit("grow")
    assert np.isnan(read(place)).all()


@pytest.mark.parametrize("gone", [[0], [1], [3], [5], [4, 5], [0, 1, 2, 3]])
@pytest.mark.parametrize("stored", [[], [0], [2], [5]])
def test_labels_of_sparse_arrays(place, gone, stored):
    values = np.full((6, 2), np.nan, "f4")
    values[stored] = 7
    missing = [(t, 0) for t in range(6) if t not in stored]
    made(
        place,
        lambda s: put(s, "time", np.arange(6), (1,), ["time"]),
        lambda s: put(s, "t", values, (1, 2), ["time", "x"], fill=np.nan, drop=missing),
    )
    delete(place, isel={"time": gone})
    np.testing.assert_array_equal(read(place), np.delete(values, gone, 0))
    assert read(place, "time").tolist() == np.delete(np.arange(6), gone).tolist()


@pytest.mark.parametrize("seed", range(20))
def test_a_repeated_dimension_shrinks_along_all_of_its_axes(place, seed, monkeypatch):
    """A covariance matrix and a tensor, beside their labels; read by zarr."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(labels, "_TASK_REFS", int(rng.integers(1, 30)))
    size = int(rng.integers(2, 9))
    dims = [["x", "x"], ["x", "t", "x"], ["t", "x", "x"], ["x", "x", "x"]][seed % 4]
    shape = [size if dim == "x" else 3 for dim in dims]
    chunks = [int(rng.integers(1, n + 1)) for n in shape]
    edges = None
    if seed % 3 == 2:
        edges = [sorted({0, n, *rng.integers(0, n + 1, 3).tolist()}) for n in shape]
    values = rng.random(shape)
    shards = [2 * n for n in chunks] if seed % 3 == 1 else None
    made(
        place,
        lambda s: put(s, "x", np.arange(size), (2,), ["x"]),
        lambda s: put(s, "mean", np.arange(size), (2,), ["x"]),
        lambda s: put(s, "cov", values, chunks, dims, shards=shards, edges=edges),
    )
    gone = np.flatnonzero(rng.random(size) < 0.4)
    if seed % 2:
        gone = np.arange(int(rng.integers(1, size)), size)
    if not len(gone):
        gone = np.array([0])
    delete(place, isel={"x": gone.tolist()})
    for axis, dim in enumerate(dims):
        if dim == "x":
            values = np.delete(values, gone, axis)
    assert np.array_equal(read(place, "cov"), values)
    if edges is None:
        storage = icechunk.local_filesystem_storage(place)
        found = zarr.open_group(
            icechunk.Repository.open(storage).readonly_session("main").store, mode="r"
        )["cov"]
        assert np.array_equal(found[...], values)


def test_all_labels_of_the_named_dimension(place):
    weather(place)
    result = delete(place, where="time >= 0")
    assert (result.dim, result.labels) == ("time", 6)
    assert read(place).shape == (0, 4)
    assert read(place, "x").shape == (4,)


@pytest.mark.parametrize("seed", range(40))
def test_regions_of_random_grids(place, seed, monkeypatch):
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(regions, "_BOX_BYTES", int(rng.integers(1, 500)))
    monkeypatch.setattr(regions, "_TASK_BYTES", int(rng.integers(1, 1000)))
    shape = tuple(int(n) for n in rng.integers(2, 10, 3))
    chunks = tuple(int(rng.integers(1, n + 1)) for n in shape)
    fill = [np.nan, 0.0][seed % 2]
    values = np.arange(np.prod(shape), dtype="f8").reshape(shape)
    outer = [-(-n // c) for n, c in zip(shape, chunks, strict=True)]
    drop = [at for at in np.ndindex(*outer) if rng.random() < 0.3]
    dims = ["a", "b", "c"]
    made(
        place,
        lambda s: put(s, "t", values, chunks, dims, fill=fill, drop=drop),
        lambda s: put(s, "b", np.arange(shape[1])[::-1] * 1.0, (2,), ["b"]),
    )
    before, base = read(place), Repository.open(place).resolve()
    chosen = [np.flatnonzero(rng.random(n) < 0.6)[: n - 1] for n in shape[:2]]
    chosen = [c if len(c) else np.array([0]) for c in chosen]
    expected = before.copy()
    expected[np.ix_(*chosen, np.arange(shape[2]))] = np.nan
    selection = {"a": chosen[0].tolist(), "b": chosen[1].tolist()}
    seen = delete(place, isel=selection, dry_run=True)
    result = delete(place, isel=selection)
    count = len(chosen[0]) * len(chosen[1]) * shape[2]
    assert result.cells == {"/t": count} == seen.cells
    assert seen.commit is None
    np.testing.assert_array_equal(read(place), expected)
    np.testing.assert_array_equal(read(place, snapshot_id=base), before)
    assert read(place, "b").tolist() == list(range(shape[1]))[::-1]


@pytest.mark.parametrize("fill", [np.nan, 0.0])
def test_a_condition_on_values(place, fill):
    weather(place, times=9, chunks=(2, 3), fill=fill, drop=[(1, 0), (4, 1)])
    before = read(place)
    condition = "(t > 12 AND x >= 1) OR (t = 0 AND time < 50)"
    expected = before.copy()
    x, time = np.arange(4)[None], (np.arange(9) * 10)[:, None]
    expected[((before > 12) & (x >= 1)) | ((before == 0) & (time < 50))] = np.nan
    assert (
        delete(place, where=condition, dry_run=True).cells == delete(place, where=condition).cells
    )
    np.testing.assert_array_equal(read(place), expected)


def test_chunks_that_become_missing_are_deleted(place):
    _, _ = weather(place, times=6)
    delete(place, where="time < 20 AND x < 2")
    session = Repository.open(place).writable_session()
    assert len(session.chunk_refs("/t", (0, 0), (3, 2))) == 5


def test_several_variables(place):
    values = np.ones((4, 4))
    made(
        place,
        lambda s: put(s, "t", values, (2, 2), ["y", "x"], fill=np.nan),
        lambda s: put(s, "u", values, (2, 2), ["x", "y"], fill=np.nan),
        lambda s: put(s, "h", values, (2, 2), ["y", "z"], fill=np.nan),
        lambda s: put(s, "m", np.ones(4), (2,), ["x"], fill=np.nan),
    )
    with pytest.raises(InvalidInputError):
        delete(place, isel="y=0; z=0; x=0")
    result = delete(place, isel="y=0:2; x=1")
    assert result.cells == {"/t": 2, "/u": 2}
    assert np.isnan(read(place, "u")[1, :2]).all()
    assert not np.isnan(read(place, "h")).any()
    result = delete(place, isel="y=3", variables=("h",))
    assert result.cells == {"/h": 4}
    assert result.dim is None
    # The labels of z are in no table of x.
    assert delete(place, isel="z=0").arrays == ("/h",)


def test_cells_of_an_array_without_missing_value(place):
    weather(place, dtype="i4", fill=0)
    with raises(InvalidInputError, variable="t"):
        delete(place, where="time < 20 AND x < 2")
    assert delete(place, where="time < 20").labels == 2


def test_integers_with_a_missing_value(place):
    weather(place, dtype="i4", fill=0, attributes={"_FillValue": -1})
    delete(place, where="time < 20 AND x < 2")
    assert (read(place)[:2, :2] == -1).all()
    assert (read(place)[2:] >= 8).all()


@pytest.mark.parametrize(
    "selecting", [{}, {"where": "time >= 0 AND x >= 0"}, {"sel": "q=1"}, {"where": "q = 1"}]
)
def test_refused(place, selecting):
    _, values = weather(place)
    with pytest.raises(InvalidInputError):
        delete(place, **selecting)
    assert np.array_equal(read(place), values)


def test_nothing_selected(place):
    repository, _ = weather(place)
    base = repository.resolve()
    for where in ("time > 1000", "time > 1000 AND x > 2", "t > 1000"):
        result = delete(place, where=where)
        assert result.commit.is_skipped
        assert not result.labels
    assert Repository.open(place).resolve() == base


def test_no_repository(place):
    with pytest.raises(NotFoundError):
        delete(place, where="time > 1")


@pytest.mark.parametrize("where", ["time < 20", "time < 20 AND x < 2"])
def test_begins_again_after_a_rival_commit(place, where):
    """Another writer changes the same array between plan and commit, once."""
    _, values = weather(place)
    rivals = itertools.chain([1], itertools.repeat(0))

    def run(function, tasks):
        done = pickled(function, tasks)
        if next(rivals):
            session = Repository.open(place).writable_session()
            for at in np.ndindex(3, 2):
                whole = values[2 * at[0] : 2 * at[0] + 2, 2 * at[1] : 2 * at[1] + 2] + 100
                codecs = parse_array_metadata(
                    session.node("/t").user_data, node_path="/t"
                ).chunk_codecs()
                session.set_chunk("/t", at, codecs.encode(np.ascontiguousarray(whole)))
            session.commit("rival")
        return done

    with pytest.raises(ConflictError):
        delete(place, where=where, run=run, options=WriteOptions(mode="append", on_conflict="fail"))
    rivals = itertools.chain([1], itertools.repeat(0))
    delete(place, where=where, run=run)
    expected = (values + 100).astype("f4")
    if "x" in where:
        expected[:2, :2] = np.nan
    else:
        expected = expected[2:]
    np.testing.assert_array_equal(read(place), expected)


def beside(rival):
    """Return a way of running the tasks of the first attempt beside a commit of a rival."""
    rivals = [rival]

    def run(function, tasks):
        done = pickled(function, tasks)
        if rivals:
            rivals.pop()()
        return done

    return run


@pytest.mark.parametrize("where", ["time = 50", "time = 20"])
def test_a_variable_that_a_rival_adds_loses_the_labels_too(place, where):
    weather(place)

    def rival():
        session = Repository.open(place).writable_session()
        put(session, "u", np.arange(6.0), (2,), ["time"])
        session.commit("rival")

    delete(place, where=where, run=beside(rival))
    gone = int(where[-2:]) // 10
    assert read(place, "u").tolist() == np.delete(np.arange(6.0), gone).tolist()
    assert read(place).shape == (5, 4)


@pytest.mark.parametrize("where", ["time = 50", "time = 20"])
def test_a_variable_that_a_rival_drops_does_not_come_back(place, where):
    weather(place)
    session = Repository.open(place).writable_session()
    put(session, "u", np.arange(6.0), (2,), ["time"])
    session.commit("another variable")
    delete(place, where=where, run=beside(lambda: Repository.open(place).drop("/u")))
    repository = Repository.open(place)
    assert set(open_dataset(repository, repository.resolve()).variables) == {"t", "time", "x"}
    assert read(place).shape == (5, 4)


def test_a_cell_that_a_rival_writes_at_the_deleted_label_is_deleted(place):
    """Its chunk is new, so the deletion has not written it."""
    made(
        place,
        lambda s: put(s, "x", np.arange(2.0), (2,), ["x"]),
        lambda s: put(s, "t", np.full((2, 2), np.nan), (1, 2), ["time", "x"], fill=np.nan,
                      drop=[(0, 0), (1, 0)]),
    )  # fmt: skip

    def rival():
        session = Repository.open(place).writable_session()
        document = parse_array_metadata(session.node("/t").user_data, node_path="/t")
        values = np.array([[3.0, 7.0]])
        session.set_chunk("/t", (1, 0), document.chunk_codecs().encode(values))
        session.commit("rival")

    delete(place, where="x = 1", run=beside(rival))
    session = Repository.open(place).writable_session()
    document = parse_array_metadata(session.node("/t").user_data, node_path="/t").with_shape((2, 2))
    session.update_metadata("/t", document.to_bytes(), shape=(2, 2), num_chunks=(2, 1))
    session.commit("grow")
    np.testing.assert_array_equal(read(place), [[np.nan, np.nan], [3, np.nan]])


def test_a_transaction_is_deleted_once(place):
    weather(place)
    options = WriteOptions(mode="append", txn_app_id="clean", txn_version=1)
    assert delete(place, isel="time=0", options=options).labels == 1
    assert delete(place, isel="time=0", options=options).commit.is_skipped
    assert read(place).shape == (5, 4)


def test_spec_version_1(tmp_path):
    place = str(tmp_path / "one")
    repository = Repository.create(place, spec_version=1)
    session = repository.writable_session()
    if session.node("/") is None:
        session.create_group("/", group_document())
    put(session, "t", np.arange(8.0), (2,), ["i"], fill=np.nan)
    session.commit("made")
    delete(place, isel="i=2:4")
    assert read(place).tolist() == [0, 1, 4, 5, 6, 7]


class PowerCutError(BaseException):
    """Ends a process as a kill does: no handler for errors sees it."""


@pytest.mark.parametrize("where", ["time BETWEEN 20 AND 30", "time >= 50", "time < 20 AND x < 2"])
@pytest.mark.parametrize("after", [False, True])
def test_a_deletion_that_ends_at_any_write_is_whole_or_did_not_happen(
    tmp_path, where, after, monkeypatch
):
    outcomes = set()
    for number in range(40):
        place = str(tmp_path / str(number))
        weather(place)
        before = (read(place), read(place, "time"))
        left = itertools.count(-number)
        put = LocalStorage.put

        def cut(storage, *given, put=put, left=left, **named):
            ends = next(left) == 0
            if ends and not after:
                raise PowerCutError
            done = put(storage, *given, **named)
            if ends:
                raise PowerCutError
            return done

        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "put", cut)
            try:
                delete(place, where=where)
                ended = False
            except PowerCutError:
                ended = True
        found = (read(place), read(place, "time"))
        is_same = all(a.tobytes() == b.tobytes() for a, b in zip(before, found, strict=True))
        outcomes.add((ended, is_same))
        if not ended:
            break
        # The same call finishes it, or finds nothing left to delete.
        delete(place, where=where)
        assert read(place).tobytes() != before[0].tobytes()
    assert (False, False) in outcomes
    assert (True, True) in outcomes


def test_labels_cannot_be_made_missing(place):
    weather(place)
    with raises(InvalidInputError, match="leave it out of variables", variable="x"):
        delete(place, isel={"x": 0}, variables=("x",))
    assert read(place, "x").tolist() == [0, 1, 2, 3]


def test_a_mask_deletes_its_labels(place):
    weather(place)
    delete(place, isel={"x": np.array([True, False, False, True])})
    assert read(place, "x").tolist() == [1, 2]


def test_a_label_that_the_array_cannot_hold_deletes_no_other(place):
    made(
        place,
        lambda s: put(s, "x", np.array([16777216, 5], "f4"), (2,), ["x"]),
        lambda s: put(s, "t", np.ones(2), (2,), ["x"], fill=np.nan),
    )
    with raises(InvalidInputError, match="has no value 16777217"):
        delete(place, sel={"x": 16777217})
    assert read(place, "x").tolist() == [16777216, 5]
