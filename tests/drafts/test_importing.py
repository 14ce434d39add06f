"""An import is visible as a whole or not at all, and repeating it gives the same repository."""

import numpy as np
import pytest
from helpers.files.draft_repositories import (
    Array,
    History,
    Version,
    some_history,
    write_numbered,
    write_state_file,
)
from helpers.raised import raises
from helpers.storage.faulty_storage import Fault, FaultyStorage

from icechunk_format.drafts import import_draft, importing, open_draft
from icechunk_format.encoding.repo_info.updates import UpdateKind
from icechunk_format.errors import (
    AlreadyExistsError,
    IcechunkError,
    NotFoundError,
    StorageError,
)
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location, open_storage


@pytest.fixture(params=[write_numbered, write_state_file])
def source(request, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    place = Location(f"memory://draft-{request.node.name}")
    for found in list(open_storage(place).list("")):
        open_storage(place).delete_many([found.key])
    request.param(open_storage(place), some_history(), outside)
    return place


@pytest.fixture
def target(request):
    place = Location(f"memory://imported-{request.node.name}")
    open_storage(place).delete_many([found.key for found in open_storage(place).list("")])
    return place


def told(location):
    """Return what a repository says, without ids that are drawn."""
    repository = Repository.open(location)
    versions = {}
    for info in repository.snapshots():
        nodes = repository.snapshot(info.id).nodes
        log = repository.transaction_log(info.id)
        versions[str(info.id)] = (
            info.parent_id,
            info.flushed_at,
            info.message,
            info.metadata,
            [(node.path, node.user_data) for node in nodes],
            sum(map(len, log.updated_chunks.values())),
        )
    return repository.branches(), repository.tags(), repository.metadata, versions


def test_the_report_counts_what_is_shared_once(source, target):
    dry = import_draft(source, target, dry_run=True)
    report = import_draft(source, target)
    assert dry.dry_run
    assert not report.dry_run
    assert (report.inline_chunks, report.virtual_chunks) == (3, 3)
    assert report.native_chunks == dry.native_chunks > 8
    assert report.bytes_copied == dry.bytes_copied
    assert report.chosen_main is None
    (prefix,) = report.virtual_prefixes
    assert prefix == "file:///"
    stored = [found.key for found in open_storage(target).list("chunks/")]
    assert len(stored) == report.native_chunks
    log = [update.kind for update in Repository.open(target).operations()]
    assert UpdateKind.REPO_MIGRATED not in log
    assert log[-1] is UpdateKind.REPO_INITIALIZED
    assert log.count(UpdateKind.NEW_COMMIT) == 3


def test_an_import_that_fails_anywhere_can_be_repeated(source, target, tmp_path):
    import_draft(source, target)
    whole = told(target)
    number = 0
    with pytest.MonkeyPatch.context() as patch:
        while True:
            storage = open_storage(target)
            storage.delete_many([found.key for found in storage.list("")])
            fault = (Fault.REFUSED, Fault.RESPONSE_LOST)[number % 2]
            faulty = FaultyStorage(storage, fault=fault, at=frozenset(range(number, 10**6)))
            patch.setattr(importing, "open_storage", lambda place, s=faulty: s)
            patch.setattr("icechunk_format.repository.state.publish.MAX_ATTEMPTS", 1)
            try:
                import_draft(open_draft(source), target)
            except IcechunkError:
                assert not Repository.exists(target) or number >= len(faulty.requests) - 2
            else:
                break
            patch.setattr(importing, "open_storage", open_storage)
            if not Repository.exists(target):
                import_draft(source, target)
            assert told(target) == whole
            number += 17
    assert number > 50


def test_nothing_is_imported_over_anything(source, target):
    storage = open_storage(target)
    storage.put("notes.txt", b"")
    with raises(AlreadyExistsError, found=("notes.txt",)):
        import_draft(source, target)
    storage.delete_many(["notes.txt"])
    import_draft(source, target)
    with raises(AlreadyExistsError, kind="repository", location=...):
        import_draft(source, target)
    with raises(NotFoundError, match="not a draft", kind="repository"):
        open_draft(target)


def test_a_missing_chunk_stops_the_import(source, target):
    chunk = next(found.key for found in open_storage(source).list("c/"))
    data = open_storage(source).get(chunk).data
    open_storage(source).delete_many([chunk])
    with pytest.raises(NotFoundError):
        import_draft(source, target)
    open_storage(source).put(chunk, data[:3])
    with pytest.raises(StorageError):
        import_draft(source, target)
    assert not Repository.exists(target)


def test_main_is_the_newest_branch_where_there_is_none(target, tmp_path):
    history = some_history()
    history.branches = {"development": "third", "other": "second"}
    place = Location("memory://draft-without-main")
    write_state_file(open_storage(place), history, tmp_path)
    report = import_draft(place, target)
    assert report.branches == ("development", "main", "other")
    assert report.chosen_main == "second"
    assert Repository.open(target).branches()["main"] == Repository.open(target).branches()["other"]


@pytest.mark.parametrize("write", [write_numbered, write_state_file])
def test_a_renumbered_node_is_another_one_and_a_smaller_array_loses_chunks(write, target, tmp_path):
    values = np.arange(6, dtype="int16")
    first = {"/a": Array(1, values, (2,)), "/b": Array(2, values, (2,))}
    second = {"/a": Array(1, values[:3], (2,)), "/b": Array(3, values, (2,))}
    history = History(
        versions=[
            Version("v1", None, 10**9, first, "1"),
            Version("v2", "v1", 2 * 10**9, second, "2"),
        ],
        branches={"main": "v2"},
        tags={},
    )
    place = Location(f"memory://draft-renumbered-{write.__name__}")
    write(open_storage(place), history, tmp_path)
    import_draft(place, target)
    repository = Repository.open(target)
    newest, before, root = repository.ancestry()
    changes = repository.diff(before.id, newest.id)
    assert set(changes.updated_arrays) == {"/a"}
    log = repository.transaction_log(newest.id)
    assert len(log.new_arrays) == len(log.deleted_arrays) == 1
    array = repository.snapshot(newest.id).node("/a")
    assert array.array.num_chunks == (2,)
    assert root.parent_id is None
