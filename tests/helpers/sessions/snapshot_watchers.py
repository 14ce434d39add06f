"""A writer that commits hundreds of times, and readers that must never see half of a commit.

Every commit changes a chunk of two arrays, and the attributes of their group, to the same number.
"""

from __future__ import annotations

import threading

import numpy as np
from helpers.sessions.model import array_document, group_document

from icechunk_format.encoding.values.flexbuffers import encode_flexbuffer
from icechunk_format.repository import Repository
from icechunk_format.repository.state.publish import update_repo
from icechunk_format.repository.state.transitions import set_config
from icechunk_format.tables import open_dataset

ARRAYS = ("/left", "/right")
_PAUSE = 0.1


def prepare(location):
    repository = Repository.create(location)
    # A short log in each state keeps hundreds of commits cheap; the rest of it is in the backups.
    config = encode_flexbuffer({"num_updates_per_repo_info_file": 10})
    update_repo(repository.storage, lambda info: set_config(info, config))
    session = repository.writable_session()
    session.create_group("/", group_document(0))
    for path in ARRAYS:
        session.create_array(path, array_document((4,), (2,)), shape=(4,), num_chunks=(2,))
    write(session, 0)
    session.commit("0")


def payload(number):
    return number.to_bytes(2, "big")


def write(session, number):
    session.update_metadata("/", group_document(number))
    for path in ARRAYS:
        session.set_chunks(path, [[0], [1]], [payload(number)] * 2)


def read_chunks(repository):
    """Return the number that the newest version holds, read by references."""
    snapshot = repository.snapshot(repository.resolve(branch="main"))
    source = repository.chunk_source()
    found = set()
    for path in ARRAYS:
        node = snapshot.node(path)
        for row in range(len(node.array.manifests)):
            manifest = repository.manifest(node.array.manifests.manifest_id(row))
            refs = manifest.array(node.id).refs
            assert len(refs) == 2
            found |= set(source.fetch(refs, np.arange(2)))
    [data] = found
    number = int.from_bytes(data, "big")
    assert snapshot.node("/").user_data == group_document(number)
    return number


def read_dataset(repository):
    """Return the number that the newest version holds, read as values of arrays."""
    dataset = open_dataset(repository, repository.resolve(branch="main"))
    left, right = (dataset.read(path[1:]).tobytes() for path in ARRAYS)
    assert left == right
    assert left[:2] == left[2:]
    return int.from_bytes(left[:2], "big")


def watch(location, read, is_over, numbers, failures):
    repository = Repository.open(location)
    try:
        # Pauses leave the writer its processor; its commits are not in step with them.
        while not is_over.wait(_PAUSE):
            numbers.append(read(repository))
    except BaseException as error:
        failures.append(error)
        raise


def watched_commits(location, count):
    """Commit ``count`` times under the eyes of readers; return what each of them saw, in order."""
    repository = Repository.open(location)
    is_over = threading.Event()
    seen, failures = [], []
    watchers = []
    for read in (read_chunks, read_dataset):
        seen.append([])
        arguments = (location, read, is_over, seen[-1], failures)
        watchers.append(threading.Thread(target=watch, args=arguments))
        watchers[-1].start()
    try:
        for number in range(1, count + 1):
            session = repository.writable_session()
            write(session, number)
            session.commit(str(number))
    finally:
        is_over.set()
        for watcher in watchers:
            watcher.join(60)
    assert failures == []
    return seen


def check(location, count):
    """Let readers watch so many commits, and check what they saw."""
    prepare(location)
    for numbers in watched_commits(location, count):
        # A branch only goes forward, and readers that open it anew follow it.
        assert numbers == sorted(numbers)
        assert len(set(numbers)) > 5
    repository = Repository.open(location)
    assert read_chunks(repository) == read_dataset(repository) == count
    assert len(list(repository.ancestry())) == count + 2
