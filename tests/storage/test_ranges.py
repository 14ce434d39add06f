"""Planned reads give every request its own bytes, whatever is joined and cut."""

from __future__ import annotations

import pytest
from helpers.raised import raises
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError
from icechunk_format.storage.protocol import ReadRequest
from icechunk_format.storage.ranges import plan_reads, quoted, unquoted

OBJECTS = {"a": bytes(range(200)), "b": bytes(reversed(range(256)))}


@st.composite
def requests(draw):
    key = draw(st.sampled_from(sorted(OBJECTS)))
    size = len(OBJECTS[key])
    if draw(st.integers(0, 5)) == 0:
        return ReadRequest(key=key, suffix=draw(st.integers(0, size)))
    start = draw(st.none() | st.integers(0, size))
    end = draw(st.none() | st.integers(start or 0, size))
    etag = draw(st.none() | st.just("x"))
    return ReadRequest(key=key, start=start, end=end, if_match=etag)


def answer(request):
    data = OBJECTS[request.key]
    if request.suffix is not None:
        return data[len(data) - request.suffix :]
    return data[request.start : request.end]


@given(
    asked=st.lists(requests(), max_size=30),
    max_gap=st.integers(0, 40),
    max_read=st.none() | st.integers(1, 60),
)
def test_every_request_gets_its_bytes(asked, max_gap, max_read):
    plan = plan_reads(asked, max_gap=max_gap, max_read=max_read)
    assert plan.assemble([answer(read) for read in plan.reads]) == [answer(r) for r in asked]
    for read in plan.reads:
        if read.end is not None:
            assert 0 < read.end - (read.start or 0) <= (max_read or 256)
    # Conditions are never mixed: each read asks for what its requests asked for.
    for request, pieces in zip(asked, plan.pieces, strict=True):
        assert all(plan.reads[index].if_match == request.if_match for index, _, _ in pieces)
        assert all(plan.reads[index].key == request.key for index, _, _ in pieces)


def test_near_ranges_are_one_read_and_far_ones_are_not():
    asked = [ReadRequest(key="a", start=s, end=s + 10) for s in (100, 0, 15, 40)]
    plan = plan_reads(asked, max_gap=5)
    assert [(r.start, r.end) for r in plan.reads] == [(0, 25), (40, 50), (100, 110)]


def test_a_large_range_is_cut_into_equal_parts():
    plan = plan_reads([ReadRequest(key="a", start=10, end=110)], max_read=30)
    assert [(r.start, r.end) for r in plan.reads] == [(10, 35), (35, 60), (60, 85), (85, 110)]


def test_joining_stops_at_the_limit_of_size():
    asked = [ReadRequest(key="a", start=s, end=s + 10) for s in range(0, 100, 10)]
    plan = plan_reads(asked, max_read=40)
    assert [(r.start, r.end) for r in plan.reads] == [(0, 40), (40, 80), (80, 100)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"start": -1},
        {"start": 5, "end": 4},
        {"end": -1},
        {"suffix": -1},
        {"suffix": 4, "start": 0},
        {"suffix": 4, "end": 4},
        {"start": 0, "end": 2**40},
        {"suffix": 2**40},
        {"if_match": "a\r\nx: y"},
        {"if_unmodified_since": -1},
        {"if_unmodified_since": 2**40},
    ],
)
def test_ranges_that_cannot_be(arguments):
    with raises(InvalidInputError, key="a/b"):
        ReadRequest(key="a/b", **arguments)


@pytest.mark.parametrize("tag", ["abc", '"abc"'])
def test_quotes_of_entity_tags(tag):
    assert unquoted(tag) == "abc"
    assert quoted(tag) == '"abc"'


def test_weak_entity_tags_stay_as_they_are():
    assert unquoted('W/"abc"') == 'W/"abc"' == quoted('W/"abc"')
