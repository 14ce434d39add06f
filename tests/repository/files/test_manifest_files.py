"""A session takes the manifests that executors stored as they are, and checks their receipts."""

import pickle

import numpy as np
import pytest
from helpers.grids.sessions import grid_session, manifest_ids, set_block
from helpers.raised import raises
from helpers.sessions.model import array_document, stored_contents

from icechunk_format.encoding.ids import ManifestId
from icechunk_format.encoding.manifest.chunk_refs import ChunkRefs
from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.grid.coordinate_set import CoordSet
from icechunk_format.repository.files import ManifestReceipt, store_manifests
from icechunk_format.repository.files.chunk_files import store_chunks


def store_block(session, ranges, payload=b"z" * 600, path="/a"):
    """Store a block of chunks and their manifest, as an executor does."""
    storage = session._storage
    coords = np.array(np.meshgrid(*ranges, indexing="ij")).reshape(len(ranges), -1).T
    refs = store_chunks(storage, coords, [payload] * len(coords), inline_threshold=512)
    [receipts] = store_manifests(storage, session.format, [(session.node(path).id, [refs])])
    return pickle.loads(pickle.dumps(receipts))


def test_manifests_of_executors_are_used_as_they_are(repository):
    session = grid_session(repository, (40, 10))
    receipts = [
        r for i in range(4) for r in store_block(session, (range(i * 10, i * 10 + 10), range(10)))
    ]
    session.add_manifests("/a", receipts)
    result = session.commit("parallel")
    assert result.files_written.get("manifests", 0) == 0
    assert manifest_ids(repository) == {receipt.manifest_id for receipt in receipts}
    assert len(stored_contents(repository, result.snapshot_id)) == 402
    log = repository.transaction_log(result.snapshot_id)
    [coords] = log.updated_chunks.values()
    assert len(coords) == 400


def test_only_what_overlaps_is_merged(repository):
    for rows in (range(10), range(20, 30)):
        session = grid_session(repository, (40, 10))
        set_block(session, rows, range(10), payload=b"old")
        session.commit("old")
    session = repository.writable_session()
    whole = store_block(session, (range(20, 30), range(10)), b"new")
    part = store_block(session, (range(8, 12), range(5)), b"new")
    apart = store_block(session, (range(35, 40), range(10)), b"new")
    session.add_manifests("/a", [*whole, *part, *apart])
    result = session.commit("second")
    assert result.files_written["manifests"] == 1
    ids = manifest_ids(repository)
    assert {whole[0].manifest_id, apart[0].manifest_id} < ids
    assert part[0].manifest_id not in ids
    contents = stored_contents(repository, result.snapshot_id)
    assert [contents[f"a/c/{i}/0"] for i in (7, 8, 11, 25, 39)] == [b"old"] + [b"new"] * 4
    assert contents["a/c/8/9"] == b"old"


def test_later_changes_win_over_manifests_of_executors_and_the_other_way_round(repository):
    session = grid_session(repository, (10,))
    set_block(session, range(10), payload=b"1")
    session.add_manifests("/a", store_block(session, (range(5),), b"2"))
    session.set_chunk("/a", [0], b"3")
    session.delete_chunks("/a", [[1]])
    refs = session.chunk_refs("/a", [0], [10])
    assert refs.coords[:, 0].tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 9]
    result = session.commit("layers")
    contents = stored_contents(repository, result.snapshot_id)
    found = [contents.get(f"a/c/{i}", b"-") for i in range(10)]
    assert b"".join(found) == b"3-22211111"


def test_shrinking_cuts_manifests_of_executors(repository):
    session = grid_session(repository, (10,))
    session.add_manifests("/a", store_block(session, (range(3, 8),), b"2"))
    session.add_manifests("/a", store_block(session, (range(8, 10),), b"3"))
    session.update_metadata("/a", array_document((5,), (1,)), shape=(5,), num_chunks=(5,))
    result = session.commit("cut")
    contents = stored_contents(repository, result.snapshot_id)
    assert sorted(contents) == ["a/c/3", "a/c/4", "a/zarr.json", "zarr.json"]


def test_a_chunk_written_by_two_tasks_is_an_error(repository):
    session = grid_session(repository, (10, 2))
    session.add_manifests("/a", store_block(session, (range(5), range(2))))
    with raises(InvalidInputError, coords=(4, 0), count=2):
        session.add_manifests("/a", store_block(session, (range(4, 6), range(2))))
    assert len(session.changes.chunks[session.node("/a").id].receipts) == 1


def test_receipts_that_do_not_fit_are_refused(repository):
    session = grid_session(repository, (10, 2))
    [good] = store_block(session, (range(5), range(2)))

    def altered(**fields):
        values = {name: getattr(good, name) for name in ManifestReceipt.__dataclass_fields__}
        return ManifestReceipt(**(values | fields))

    with raises(InvalidInputError, name="/a", extents=((0, 5), (0, 1))):
        session.add_manifests("/a", [altered(extents=((0, 5), (0, 1)))])
    with raises(InvalidInputError, name="/a", found=9, expected=10):
        session.add_manifests("/a", [altered(num_chunk_refs=9)])
    far = CoordSet.of([[10, 0]])
    with raises(InvalidInputError, name="/a", coords=(10, 0)):
        session.add_manifests(
            "/a", [altered(coords=far, extents=((10, 11), (0, 1)), num_chunk_refs=1)]
        )
    with pytest.raises(NotFoundError):
        session.add_manifests("/b", [good])


def test_a_receipt_without_its_file_is_found_out_where_it_is_read(repository_v2):
    receipt = ManifestReceipt(
        manifest_id=ManifestId(bytes(12)),
        size_bytes=1,
        num_chunk_refs=1,
        extents=((0, 1),),
        coords=CoordSet.of([[0]]),
    )
    session = grid_session(repository_v2, (4,))
    session.add_manifests("/a", [receipt])
    session.set_chunk("/a", [0], b"x")
    with raises(NotFoundError, match="manifests/0000", kind="object", file_type="manifest"):
        session.commit("broken")


def test_more_chunks_than_a_log_can_list_are_refused_before_anything_is_stored(repository):
    session = grid_session(repository, (1000, 1000, 100))
    receipts = [
        ManifestReceipt(
            manifest_id=ManifestId(bytes([half]) * 12),
            size_bytes=1,
            num_chunk_refs=50_000_000,
            extents=((half * 500, half * 500 + 500), (0, 1000), (0, 100)),
            coords=CoordSet.of_boxes([[[half * 500, half * 500 + 500], [0, 1000], [0, 100]]]),
        )
        for half in (0, 1)
    ]
    session.add_manifests("/a", receipts)
    before = sorted(found.key for found in repository.storage.list(""))
    with raises(
        InvalidInputError, match=r"of 100000000 changed chunks .* several parts", allowed=2147483647
    ):
        session.commit("too much")
    assert sorted(found.key for found in repository.storage.list("")) == before


def test_manifests_whose_chunks_lie_between_one_another_are_taken_over(repository):
    session = grid_session(repository, (9,))
    node_id = session.node("/a").id
    parts = []
    for start in (0, 1):
        coords = [[i] for i in range(start, 8, 2)]
        payloads = [b"%d" % i for [i] in coords]
        refs = store_chunks(repository.storage, coords, payloads, inline_threshold=512)
        parts.append((node_id, [refs]))
    receipts = [
        r for found in store_manifests(repository.storage, session.format, parts) for r in found
    ]
    session.add_manifests("/a", receipts)
    session.set_refs("/a", ChunkRefs.empty(1))
    session.delete_chunks("/a", [[8]])
    result = session.commit("interleaved")
    [coords] = repository.transaction_log(result.snapshot_id).updated_chunks.values()
    assert coords[:, 0].tolist() == list(range(9))
    contents = stored_contents(repository, result.snapshot_id)
    assert {k: v for k, v in contents.items() if "/c/" in k} == {
        f"a/c/{i}": b"%d" % i for i in range(8)
    }


def test_what_was_dropped_or_replaced_can_be_written_by_executors_again(repository):
    session = grid_session(repository, (10,))
    session.add_manifests("/a", store_block(session, (range(6),), b"1"))
    document = array_document((3,), (1,))
    session.update_metadata("/a", document, shape=(3,), num_chunks=(3,))
    document = array_document((10,), (1,))
    session.update_metadata("/a", document, shape=(10,), num_chunks=(10,))
    session.delete_chunks("/a", [[1]])
    session.set_chunk("/a", [2], b"2")
    session.add_manifests("/a", store_block(session, (range(1, 5),), b"3"))
    with raises(InvalidInputError, coords=(0,), count=1):
        session.add_manifests("/a", store_block(session, (range(1),)))
    result = session.commit("again")
    contents = stored_contents(repository, result.snapshot_id)
    assert b"".join(contents.get(f"a/c/{i}", b"-") for i in range(10)) == b"13333-----"
