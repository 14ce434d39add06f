"""Processes that commit to one branch at the same moment, and tell what became of it.

Each rival holds a session that began at the same version as those of all others. First all commit
at once: a chunk of their own together with one chunk that everybody writes, so that exactly one can
win and all others must be told. Then each commits a chunk that nobody else writes, which must work
for all. Imports nothing but the library, since many processes import it.
"""

from __future__ import annotations

import multiprocessing

from helpers.sessions.model import array_document, group_document

from icechunk_format.errors import ConflictError
from icechunk_format.repository import Repository

RIVALS = 16


def prepare(location, spec_version):
    """Create the repository that the rivals commit to."""
    repository = Repository.create(location, spec_version=spec_version)
    session = repository.writable_session()
    session.create_group("/", group_document())
    for path in ("/contested", "/own"):
        document = array_document((RIVALS,), (1,))
        session.create_array(path, document, shape=(RIVALS,), num_chunks=(RIVALS,))
    session.commit("base")
    return repository


def _rival(location, number, barrier, outcomes):
    repository = Repository.open(location)
    session = repository.writable_session()
    for place in {0, number}:
        session.set_chunk("/contested", [place], b"by %d" % number)
    barrier.wait(120)
    try:
        session.commit(f"contested {number}")
        reported = "won"
    except ConflictError as error:
        reported = f"lost over {error.facts['paths']}"
    session = repository.writable_session()
    session.set_chunk("/own", [number], b"own %d" % number)
    session.commit(f"own {number}")
    outcomes.put((number, reported))


def compete(location):
    """Let the rivals loose; return what each one reported, by its number."""
    # Children of a server that has imported everything are quick to start, and have no threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["icechunk_format.repository.repository", "competing_processes"])
    barrier, outcomes = context.Barrier(RIVALS), context.SimpleQueue()
    rivals = [
        context.Process(target=_rival, args=(location, number, barrier, outcomes))
        for number in range(RIVALS)
    ]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join(240)
    assert [rival.exitcode for rival in rivals] == [0] * RIVALS
    return dict(outcomes.get() for _ in rivals)


def expected_after(outcomes):
    """Return the messages and the chunks that must be there, after checking who reported what."""
    [winner] = [number for number, reported in outcomes.items() if reported == "won"]
    lost = [reported for reported in outcomes.values() if reported != "won"]
    assert lost == ["lost over ('/contested',)"] * (RIVALS - 1)
    messages = {f"own {number}" for number in range(RIVALS)}
    messages |= {f"contested {winner}", "base", "Repository initialized"}
    chunks = {f"own/c/{number}": b"own %d" % number for number in range(RIVALS)}
    chunks |= {f"contested/c/{place}": b"by %d" % winner for place in {0, winner}}
    return messages, chunks
