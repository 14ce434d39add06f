"""Reading a box gives NumPy's slice of it, and asks for few bytes in few requests."""

import numpy as np
import pytest
from helpers.grids.synthetic_datasets import ArrayToWrite, new_id, write_dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.encoding.ids import ManifestId, NodeId
from icechunk_format.encoding.manifest.chunk_refs import KIND_NATIVE, ChunkRefs
from icechunk_format.encoding.manifest.decode import ArrayManifest, Manifest
from icechunk_format.encoding.manifest.encode import encode as encode_manifest
from icechunk_format.encoding.node_path import NodePath
from icechunk_format.encoding.object_keys import manifest_key
from icechunk_format.encoding.snapshot.file import ArrayNode, NodeSnapshot
from icechunk_format.encoding.snapshot.manifest_lists import ManifestRefs
from icechunk_format.errors import FormatError
from icechunk_format.groups import DimSelection, SnapshotSource
from icechunk_format.repository.chunks import ChunkSource
from icechunk_format.repository.files import metadata_cache
from icechunk_format.repository.files.chunk_lookup import ChunkLookup
from icechunk_format.storage.location import Location, open_storage


class RecordingSource(ChunkSource):
    calls = None

    def fetch(self, refs, rows, ranges=None):
        parts = super().fetch(refs, rows, ranges)
        type(self).calls.append((len(rows), sum(map(len, parts))))
        return parts


def reader_of(dataset, name):
    RecordingSource.calls = []
    source = RecordingSource(location=dataset.source.chunk_source.location)
    return SnapshotSource(source, dataset.snapshot_id).open().reader(dataset.variables[name].path)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_product_of_selections_is_numpys(data):
    ndim = data.draw(st.integers(0, 3))
    shape = tuple(data.draw(st.integers(1, 7)) for _ in range(ndim))
    chunks = tuple(data.draw(st.integers(1, n)) for n in shape)
    shards = tuple(c * data.draw(st.integers(1, 2)) for c in chunks)
    values = np.arange(int(np.prod(shape)), dtype="u2").reshape(shape)
    array = ArrayToWrite(
        values=values,
        chunks=chunks,
        dims=None,
        shards=shards if data.draw(st.booleans()) and ndim else None,
        manifest_chunks=data.draw(st.sampled_from([None, 1])),
    )
    reader = reader_of(write_dataset("boxes", {"a": array}), "a")
    selections, index = [], []
    for size in shape:
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
        selections.append(DimSelection.of_mask(mask))
        index.append(np.flatnonzero(mask))
    found = reader.read(selections)
    expected = values[np.ix_(*index)] if ndim else values
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == values.dtype
    in_parts = reader.read_selected(selections, data.draw(st.sampled_from([1, 60, 1 << 20])))
    np.testing.assert_array_equal(in_parts, expected)


@pytest.fixture
def big_shards():
    rng = np.random.default_rng(5)
    array = ArrayToWrite(
        values=rng.integers(0, 2**60, size=(512, 256)),
        chunks=(32, 64),
        shards=(256, 256),
        dims=("y", "x"),
        codecs=[{"name": "bytes", "configuration": {"endian": "little"}}],
    )
    return array.values, write_dataset("shards", {"a": array})


def test_few_inner_chunks_are_read_as_ranges(big_shards):
    values, dataset = big_shards
    metadata_cache().clear()
    reader = reader_of(dataset, "a")
    found = reader.read_box([250, 0], [260, 10])
    np.testing.assert_array_equal(found, values[250:260, 0:10])
    inner, index = 32 * 64 * 8, 8 * 4 * 16 + 4
    # One batch for the indexes of both shards, one for an inner chunk of each.
    assert reader.chunk_source.calls == [(2, 2 * index), (2, 2 * inner)]
    reader.read_box([0, 70], [1, 71])
    # The index is known by now.
    assert reader.chunk_source.calls[2:] == [(1, inner)]


def test_most_of_a_shard_is_read_whole(big_shards):
    values, dataset = big_shards
    metadata_cache().clear()
    reader = reader_of(dataset, "a")
    np.testing.assert_array_equal(reader.read_box([0, 0], [256, 200]), values[:256, :200])
    assert [count for count, _ in reader.chunk_source.calls] == [1]


def test_a_damaged_shard_index_is_an_error(big_shards):
    _, dataset = big_shards
    metadata_cache().clear()
    storage = open_storage(dataset.source.chunk_source.location)
    for info in list(storage.list("chunks/")):
        data = storage.get(info.key).data
        storage.put(info.key, data[:-8] + bytes(8))
    for box in ([0, 0], [1, 1]), ([0, 0], [512, 256]):
        with pytest.raises(FormatError):
            reader_of(dataset, "a").read_box(*box)


def write_manifest(storage, node_id, coords):
    refs = ChunkRefs.blank(np.array(coords, dtype=np.uint32), KIND_NATIVE)
    manifest_id = new_id(ManifestId)
    manifest = Manifest(id=manifest_id, arrays=(ArrayManifest(node_id=node_id, refs=refs),))
    storage.put(manifest_key(manifest_id), encode_manifest(manifest))
    return list(manifest_id.raw)


def test_the_first_manifest_whose_extents_hold_a_chunk_decides():
    storage = open_storage(Location("memory://overlapping"))
    node_id = new_id(NodeId)
    first = write_manifest(storage, node_id, [[0, 0], [1, 1]])
    second = write_manifest(storage, node_id, [[0, 1], [1, 1], [2, 2], [3, 3]])
    array = ArrayNode(
        shape=(9, 9),
        num_chunks=(9, 9),
        manifests=ManifestRefs(
            ids=np.array([first, second], dtype=np.uint8),
            # The second lists a chunk beyond its extents: no reader finds it.
            extents=np.array([[[0, 2], [0, 2]], [[0, 3], [0, 3]]], dtype=np.uint32),
        ),
    )
    node = NodeSnapshot(id=node_id, path=NodePath("/a"), user_data=b"{}", array=array)
    lookup = ChunkLookup(storage, node)
    asked = np.array([[0, 1], [2, 2], [3, 3], [1, 1], [0, 0]], dtype=np.uint32)
    found = lookup.find(asked)
    # (0, 1) is in the first manifest's extents and not in it, so it is missing.
    assert found.positions.tolist() == [1, 3, 4]
    assert found.refs.coords[found.rows].tolist() == [[2, 2], [1, 1], [0, 0]]
    listed = [
        coords
        for refs, rows in lookup.in_box([0, 0], [9, 9])
        for coords in refs.coords[rows].tolist()
    ]
    assert sorted(listed) == [[0, 0], [1, 1], [2, 2]]
