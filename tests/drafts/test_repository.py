"""Repositories of both drafts are read, and damage raises one kind of typed error.

The bytes are untrusted: nothing that they say leads out of the repository's folder, allocates more
than was stored, or escapes as another error.
"""

import contextlib
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.builder import new_location
from helpers.files.draft_repositories import (
    MANIFEST,
    STRUCTURE,
    crockford,
    id16,
    instant,
    pack,
    parquet,
    some_history,
    write_numbered,
    write_state_file,
)
from helpers.raised import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icechunk_format.drafts import import_draft, open_draft
from icechunk_format.drafts.model import DraftChunks
from icechunk_format.drafts.records import decode_record
from icechunk_format.encoding.manifest.chunk_refs import KIND_INLINE, KIND_NATIVE, KIND_VIRTUAL
from icechunk_format.errors import (
    FormatError,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from icechunk_format.repository import Repository
from icechunk_format.repository.lifecycle.difference import changed_coords
from icechunk_format.storage.location import Location, open_storage

# A loaded machine is no failure.
RELAXED = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture
def place():
    return new_location()


@pytest.fixture
def storage(place):
    return open_storage(place)


WRITERS = [
    write_numbered,
    lambda *a: write_numbered(*a, encode=pack),
    write_state_file,
]


@pytest.mark.parametrize("write", WRITERS)
def test_versions_nodes_and_references_are_read(place, storage, tmp_path, write):
    history = some_history()
    write(storage, history, tmp_path)
    draft = open_draft(place)
    first, second, third = sorted(
        draft.snapshots(), key=lambda s: (s.message[0] != "o", s.message[1] != "w")
    )
    assert [s.message for s in (first, second, third)] == ["one", "two", "three"]
    assert draft.branches() == {"development": third.id, "main": second.id}
    assert draft.tags() == {"v1": first.id}
    assert first.parent_id is None
    assert second.parent_id == third.parent_id == first.id
    assert second.written_at - first.written_at == 2_000_000
    assert first.properties["n"] == [1, 2.5, None]
    assert [s.id for s in draft.ancestry(second.id)] == [second.id, first.id]
    nodes = {node.path: node for node in draft.nodes(first.id)}
    assert list(nodes) == ["/", "/flags", "/g", "/g/t2m", "/scalar"]
    assert json.loads(nodes["/"].user_data)["attributes"] == {"title": "ü"}
    array = nodes["/g/t2m"].array
    assert array.shape == (4, 5)
    assert array.dimension_names == ("y", None)
    assert math.isnan(array.fill_value)
    chunks = draft.chunk_refs(nodes["/g/t2m"])
    assert chunks.coords.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert chunks.kind.tolist() == [KIND_NATIVE, KIND_NATIVE, KIND_INLINE, KIND_VIRTUAL]
    expected = [data for _, _, data in history.of("first").nodes["/g/t2m"].chunks()]
    assert draft.read_chunks(chunks, [2, 0, 1]) == [expected[2], expected[0], expected[1]]
    with raises(NotFoundError, kind="chunk"):
        draft.read_chunks(chunks, [3])
    with pytest.raises(NotFoundError):
        draft.nodes("0" * 26)


def test_parents_come_from_branch_files_where_histories_are_cut(place, storage, tmp_path):
    write_numbered(storage, some_history(), tmp_path)
    key = f"s/{crockford(id16('second'))}"
    record = json.loads(storage.get(key).data)
    record["short_term_history"] = []
    storage.put(key, json.dumps(record).encode())
    draft = open_draft(place)
    assert len(list(draft.ancestry(draft.branches()["main"]))) == 2
    record["total_parents"] = 0
    storage.put(key, json.dumps(record).encode())
    assert len(list(open_draft(place).ancestry(draft.branches()["main"]))) == 1


def test_a_parent_whose_file_is_gone_ends_the_history(place, storage, tmp_path):
    write_numbered(storage, some_history(), tmp_path)
    storage.delete_many([f"s/{crockford(id16('first'))}", "r/v1.json"])
    report = import_draft(place, str(tmp_path / "target"))
    assert report.snapshots == 2
    repository = Repository.open(str(tmp_path / "target"))
    assert [s.message for s in repository.ancestry()] == ["two", "Repository initialized"]


def test_newest_ancestor_wins_whatever_the_order(place, storage, tmp_path):
    write_numbered(storage, some_history(), tmp_path)
    key = f"s/{crockford(id16('second'))}"
    record = json.loads(storage.get(key).data)
    older = {"id": list(id16("elder")), "message": "", "written_at": instant(1)}
    for history in ([older, *record["short_term_history"]], [*record["short_term_history"], older]):
        record["short_term_history"] = history
        storage.put(key, json.dumps(record).encode())
        assert len(list(open_draft(place).ancestry(open_draft(place).branches()["main"]))) == 2


def test_a_circle_of_parents_is_an_error(place, storage):
    snapshots = [
        {"snapshot-id": a, "parent-snapshot-id": b, "timestamp-ms": 1, "structure-file": "x"}
        for a, b in (("a", "b"), ("b", "a"))
    ]
    document = {"id": "x", "generation": 1, "snapshots": snapshots, "refs": {}}
    storage.put("state.json", json.dumps(document).encode())
    draft = open_draft(place)
    with pytest.raises(FormatError, match="its own ancestor"):
        draft.snapshots()


def test_a_state_file_elsewhere_is_followed_only_when_told(place, storage, tmp_path):
    data = Location(f"{place.url}-data")
    root = "s3://elsewhere/data"
    write_state_file(storage, some_history(), tmp_path, data=open_storage(data), store_root=root)
    with raises(InvalidInputError, store_root="s3://elsewhere/data"):
        open_draft(place)
    draft = open_draft(place, store_root=data)
    assert len(draft.nodes("first")) == 5
    assert import_draft(draft, str(tmp_path / "target")).snapshots == 3


def test_a_state_file_without_refs_has_main_at_its_newest_version(place, storage, tmp_path):
    write_state_file(storage, some_history(), tmp_path, refs=None)
    assert open_draft(place).branches() == {"main": "second"}


def test_nothing_there_is_no_draft(place):
    with raises(NotFoundError, kind="repository"):
        open_draft(place)


STATE_PROBLEMS = {
    "not json": b"[1",
    "positions": b"\x93\x01\x02\x03",
    "no id": {"generation": 1, "snapshots": []},
    "generation": {"id": "a", "generation": "1", "snapshots": []},
    "no snapshots": {"id": "a", "generation": 1},
    "snapshots": {"id": "a", "generation": 1, "snapshots": [3]},
    "time": {
        "id": "a",
        "generation": 1,
        "snapshots": [{"snapshot-id": "a", "timestamp-ms": -1, "structure-file": "x"}],
    },
    "ref to nothing": {
        "id": "a",
        "generation": 1,
        "snapshots": [],
        "refs": {"main": {"name": "main", "snapshot-id": "b", "type": "branch"}},
    },
}


@pytest.mark.parametrize("problem", STATE_PROBLEMS)
def test_a_broken_state_file_is_named(place, storage, problem):
    content = STATE_PROBLEMS[problem]
    storage.put(
        "state.json", content if isinstance(content, bytes) else json.dumps(content).encode()
    )
    with raises(FormatError, object_key="state.json"):
        open_draft(place)


@pytest.mark.parametrize("name", ["../repo", "/etc/passwd", "a/../../b", "", "x\\y", "..", "a\x00"])
@pytest.mark.parametrize("what", ["structure", "manifest", "chunk"])
def test_names_never_leave_their_folder(place, storage, tmp_path, name, what):
    node = {
        "id": 1,
        "type": "array",
        "path": "/a",
        "array_metadata": {
            "shape": [1],
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "bytes"}],
        },
        "inventories": [
            {"inventory_file": name if what == "manifest" else "m", "row": 0, "extent": []}
        ],
    }
    chunk = {"id": 0, "array_id": 1, "coord": b"\0", "length": 1, "chunk_file": name}
    storage.put("s/s", parquet([node], STRUCTURE))
    storage.put("i/m", parquet([chunk], MANIFEST))
    version = {
        "snapshot-id": "a",
        "timestamp-ms": 1,
        "structure-file": name if what == "structure" else "s",
    }
    document = {"id": "x", "generation": 1, "snapshots": [version]}
    storage.put("state.json", json.dumps(document).encode())
    with pytest.raises(FormatError):
        import_draft(place, str(tmp_path / "target"))
    assert not Repository.exists(str(tmp_path / "target"))


def _array(**changes):
    fields = {
        "shape": [4],
        "chunk_shape": [2],
        "data_type": "int8",
        "fill_value": {"Int8": 0},
        "codecs": [{"name": "bytes"}],
        "chunk_key_encoding": "Slash",
    } | changes
    return {"Array": [fields, []]}


NODE_PROBLEMS = {
    "other path": ({"path": "/b"}, FormatError),
    "bad path": ({"path": "a"}, FormatError),
    "no kind": ({"node_data": "Table"}, FormatError),
    "attributes that are a list": ({"user_attributes": {"Inline": [1]}}, FormatError),
    "attributes elsewhere": ({"user_attributes": {"Ref": {}}}, UnsupportedError),
    "fill value of another type": ({"node_data": _array(fill_value={"Int16": 0})}, FormatError),
    "fill value out of range": ({"node_data": _array(fill_value={"Int8": 300})}, FormatError),
    "zero chunks": ({"node_data": _array(chunk_shape=[0])}, FormatError),
    "other dimensions": ({"node_data": _array(chunk_shape=[1, 1])}, FormatError),
    "negative shape": ({"node_data": _array(shape=[-1])}, FormatError),
    "no codecs": ({"node_data": _array(codecs=[])}, FormatError),
    "unknown type": ({"node_data": _array(data_type="int7")}, FormatError),
    "unknown encoding": ({"node_data": _array(chunk_key_encoding="Colon")}, FormatError),
    "transformers": (
        {"node_data": _array(storage_transformers=[{"name": "x"}])},
        UnsupportedError,
    ),
    "names": ({"node_data": _array(dimension_names=["a", "b"])}, FormatError),
    "short id": (
        {
            "node_data": {
                "Array": [
                    _array()["Array"][0],
                    [{"object_id": [1, 2], "extents": [], "flags": []}],
                ]
            }
        },
        FormatError,
    ),
}


@pytest.mark.parametrize("problem", NODE_PROBLEMS)
def test_a_broken_node_is_named(place, storage, tmp_path, problem):
    write_numbered(storage, some_history(), tmp_path)
    changes, error = NODE_PROBLEMS[problem]
    key = f"s/{crockford(id16('first'))}"
    record = json.loads(storage.get(key).data)
    path = changes.get("path", "/a") if problem == "bad path" else "/a"
    record["nodes"] = {path: {"id": 1, "path": "/a", "node_data": "Group"} | changes}
    storage.put(key, json.dumps(record).encode())
    draft = open_draft(place)
    with pytest.raises(error) as caught:
        draft.nodes(draft.tags()["v1"])
    facts = caught.value.facts
    assert path in (facts["field"] if error is FormatError else facts["node_path"])


UNSPEAKABLE = {
    "bytes": ("/", {"user_attributes": {"Inline": {"x": b"abc"}}}),
    "names that are bytes": ("/", {"user_attributes": {"Inline": {b"x": 1}}}),
    "half a character": ("/g", {"path": "\ud800"}),
}


@pytest.mark.parametrize("problem", UNSPEAKABLE)
def test_what_json_cannot_say_is_an_error_of_the_draft(place, storage, tmp_path, problem):
    write_numbered(storage, some_history(), tmp_path)
    path, changes = UNSPEAKABLE[problem]
    key = f"s/{crockford(id16('first'))}"
    record = json.loads(storage.get(key).data)
    record["nodes"][path] |= changes
    is_text = problem == "half a character"
    storage.put(key, json.dumps(record).encode() if is_text else pack(record))
    with raises(FormatError, object_key=key):
        import_draft(place, str(tmp_path / "target"))


CHUNK_PROBLEMS = {
    "letters": ({"2/x": {"Inline": [1]}}, "chunks.2/x"),
    "negative": ({"2/-1/0": {"Inline": [1]}}, "chunks.2/-1/0"),
    "dimensions": ({"2/0": {"Inline": [1]}}, None),
    "large": ({f"2/0/{2**32}": {"Inline": [1]}}, None),
    "two kinds": ({"2/0/0": {"Inline": [1], "Ref": {}}}, "chunks.2/0/0"),
    "no kind": ({"2/0/0": {"File": 1}}, "chunks.2/0/0"),
    "no bytes": ({"2/0/0": {"Inline": []}}, None),
    "not bytes": ({"2/0/0": {"Inline": [256]}}, "chunks.2/0/0.Inline"),
    "no location": ({"2/0/0": {"Virtual": {"location": "", "offset": 0, "length": 1}}}, None),
    "no length": (
        {"2/0/0": {"Virtual": {"location": "s3://b/x", "offset": 0}}},
        "chunks.2/0/0.Virtual.length",
    ),
    "id": ({"2/0/0": {"Ref": {"id": [1] * 15, "offset": 0, "length": 1}}}, "chunks.2/0/0.Ref.id"),
    "offset": (
        {"2/0/0": {"Ref": {"id": [1] * 16, "offset": 2**64, "length": 1}}},
        "chunks.2/0/0.Ref.offset",
    ),
}


@pytest.mark.parametrize("problem", CHUNK_PROBLEMS)
def test_a_broken_reference_is_named(place, storage, tmp_path, problem):
    write_numbered(storage, some_history(), tmp_path)
    key = f"m/{crockford(id16('mfirst2'))}"
    chunks, field = CHUNK_PROBLEMS[problem]
    storage.put(key, json.dumps({"chunks": chunks}).encode())
    draft = open_draft(place)
    node = next(n for n in draft.nodes(draft.tags()["v1"]) if n.path == "/g/t2m")
    with raises(FormatError, object_key=key, field=field):
        draft.chunk_refs(node)


TABLE_PROBLEMS = {
    "coordinates": {"coord": b"\0\0\0"},
    "neither": {"chunk_file": None},
    "no bytes": {"length": 0},
}


@pytest.mark.parametrize("problem", TABLE_PROBLEMS)
def test_a_broken_row_is_named(place, storage, tmp_path, problem):
    write_state_file(storage, some_history(), tmp_path)
    row = {"id": 0, "array_id": 2, "coord": b"\0\0", "length": 1, "chunk_file": "x"}
    storage.put("i/i-first", parquet([row | TABLE_PROBLEMS[problem]], MANIFEST))
    draft = open_draft(place)
    node = next(n for n in draft.nodes("first") if n.path == "/g/t2m")
    with raises(FormatError, object_key="i/i-first"):
        draft.chunk_refs(node)


def test_wider_columns_and_missing_ones_are_read(place, storage, tmp_path):
    write_state_file(storage, some_history(), tmp_path)
    rows = pa.table(
        {
            "array_id": pa.array([2, 2], pa.int64()),
            "coord": pa.array([b"\0\1\0\0", b"\0\0\0\0"], pa.binary()),
            "length": pa.array([5, 5], pa.uint64()),
            "chunk_file": pa.array(["x", "folder/y"], pa.large_string()),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    storage.put("i/i-first", sink.getvalue().to_pybytes())
    draft = open_draft(place)
    node = next(n for n in draft.nodes("first") if n.path == "/g/t2m")
    chunks = draft.chunk_refs(node)
    assert chunks.coords.tolist() == [[0, 0], [1, 0]]
    assert chunks.payload.to_pylist() == [b"c/folder/y", b"c/x"]
    assert chunks.offset.tolist() == [0, 0]


@pytest.mark.parametrize("write", WRITERS)
def test_damaged_files_end_as_one_kind_of_error(place, storage, tmp_path, write):
    write(storage, some_history(), tmp_path)
    rng = np.random.default_rng(5)
    keys = [f.key for f in storage.list("") if not f.key.startswith("c/")]
    for key in sorted(keys):
        whole = storage.get(key).data
        for _ in range(5):
            data = bytearray(whole)
            at = int(rng.integers(len(data)))
            if rng.random() < 0.3:
                data = data[:at]
            else:
                data[at] = int(rng.integers(256))
            storage.put(key, bytes(data))
            with contextlib.suppress(IcechunkError):
                draft = open_draft(place)
                for version in draft.snapshots():
                    for node in draft.nodes(version.id):
                        draft.chunk_refs(node)
        storage.put(key, whole)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=5), v, max_size=3),
    max_leaves=10,
)


@RELAXED
@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4))
def test_both_encodings_of_a_record_say_the_same(value):
    found = decode_record(json.dumps(value).encode(), object_key="x", file_type="draft ref")
    other = decode_record(pack(value), object_key="x", file_type="draft ref")
    assert found.value == other.value == value


@RELAXED
@given(st.binary(max_size=50))
def test_any_bytes_are_a_record_or_an_error(data):
    with contextlib.suppress(FormatError):
        decode_record(data, object_key="x", file_type="draft ref")


places = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.binary(min_size=1, max_size=2), st.integers(0, 2)),
    max_size=8,
)


def _chunks(content):
    rows = sorted(content)
    return DraftChunks(
        coords=np.array(rows, dtype=np.uint32).reshape(len(rows), 2),
        kind=np.full(len(rows), KIND_NATIVE, dtype=np.uint8),
        payload=pa.array([content[at][0] for at in rows], type=pa.large_binary()),
        offset=np.array([content[at][1] for at in rows], dtype=np.uint64),
        length=np.ones(len(rows), dtype=np.uint64),
    )


@RELAXED
@given(places, places)
def test_differences_of_references_are_those_of_dictionaries(old, new):
    expected = sorted(at for at in {*old, *new} if old.get(at) != new.get(at))
    found = changed_coords(_chunks(old).converted(), _chunks(new).converted())
    assert [tuple(at) for at in found.tolist()] == expected
    joined = DraftChunks.joined([_chunks(new), _chunks(old)], 2)
    assert len(joined) == len({*old, *new})
    assert changed_coords(_chunks(old | new).converted(), joined.converted()).tolist() == []
