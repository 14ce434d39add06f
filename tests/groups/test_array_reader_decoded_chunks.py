"""Decoded chunks are announced once, and the oldest leave when the budget is spent."""

import numpy as np

from icechunk_format.groups import DecodedChunks


def test_a_chunk_is_announced_until_it_is_kept_and_then_known():
    chunks = DecodedChunks(10_000)
    assert chunks.announce("a")
    assert not chunks.announce("a")
    assert chunks.find("a") == (False, None)
    chunks.keep("a", None)
    assert chunks.find("a") == (True, None)
    assert not chunks.announce("a")
    assert chunks.announce("b")


def test_the_least_recently_used_chunk_leaves():
    chunks = DecodedChunks(2_500)
    for key in "ab":
        chunks.keep(key, np.zeros(1_000, "u1"))
    chunks.find("a")
    chunks.keep("c", np.zeros(1_000, "u1"))
    assert [chunks.find(key)[0] for key in "abc"] == [True, False, True]
    assert chunks.announce("b")
    chunks.keep("large", np.zeros(3_000, "u1"))
    assert [chunks.find(key)[0] for key in ("a", "large")] == [True, False]
