"""A repository that grew by many small commits, for copying and for rewriting its manifests."""

from __future__ import annotations

import numpy as np
from helpers.sessions.model import array_document, group_document

from icechunk_format.repository import Repository

STEPS, WIDTH = 24, 6


def build_appended(path):
    """Two arrays with a commit for each step: inline chunks in one, objects in the other."""
    repository = Repository.create(str(path))
    session = repository.writable_session()
    session.create_group("/", group_document())
    for name in ("small", "large"):
        session.create_array(
            f"/{name}",
            array_document((STEPS, WIDTH), (1, 1)),
            shape=(STEPS, WIDTH),
            num_chunks=(STEPS, WIDTH),
        )
    session.commit("create")
    for step in range(STEPS):
        session = repository.writable_session()
        at = np.array([[step, i] for i in range(WIDTH)])
        session.set_chunks("/small", at, [bytes([step, i]) for i in range(WIDTH)])
        session.set_chunks("/large", at, [bytes([step, i]) * 400 for i in range(WIDTH)])
        session.commit(f"step {step}")
    return repository
