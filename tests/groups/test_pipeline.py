"""Reading ahead keeps the order and the budget, and stops when the consumer does."""

import threading
import time

import pytest

from icechunk_format.groups import read_ahead


def run(blocks, *, fetch=lambda b: b, decode=lambda _, f: f, cost=lambda _: 1, max_bytes=4):
    return read_ahead(blocks, fetch=fetch, decode=decode, cost=cost, max_bytes=max_bytes)


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_blocks_come_in_order(count):
    def fetch(block):
        time.sleep(0.002 * (block % 3))
        return -block

    assert list(run(range(count), fetch=fetch)) == [-n for n in range(count)]


def test_the_budget_bounds_what_is_started():
    lock = threading.Lock()
    held, most = 0, 0

    def fetch(block):
        nonlocal held, most
        with lock:
            held += block
            most = max(most, held)
        return block

    for block in run([3, 3, 3, 3, 3, 3, 3], fetch=fetch, cost=lambda b: b, max_bytes=9):
        with lock:
            held -= block
    # The block that the consumer holds is given back when it asks for the next.
    assert most <= 9


def test_a_block_beyond_the_budget_is_read_alone():
    seen = []

    def fetch(block):
        seen.append(block)
        return block

    blocks = run([1, 100, 1, 1], fetch=fetch, cost=lambda b: b, max_bytes=10)
    assert next(blocks) == 1
    assert seen == [1]
    assert next(blocks) == 100
    assert seen == [1, 100]
    assert list(blocks) == [1, 1]


def test_an_endless_source_is_taken_as_needed():
    def endless():
        number = 0
        while True:
            yield number
            number += 1

    blocks = run(endless())
    assert [next(blocks) for _ in range(5)] == [0, 1, 2, 3, 4]
    blocks.close()


@pytest.mark.parametrize("stage", ["fetch", "decode"])
def test_an_error_comes_in_the_place_of_its_block(stage):
    def fail(block):
        if block == 2:
            raise ValueError("block 2")
        return block

    blocks = run(
        range(5),
        fetch=fail if stage == "fetch" else lambda b: b,
        decode=(lambda _, f: fail(f)) if stage == "decode" else lambda _, f: f,
    )
    assert next(blocks) == 0
    assert next(blocks) == 1
    with pytest.raises(ValueError, match="block 2"):
        next(blocks)
