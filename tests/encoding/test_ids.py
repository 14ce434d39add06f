"""Ids round-trip through their text, order like their bytes, and refuse everything else."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from helpers.raised import raises
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.encoding.ids import (
    INITIAL_SNAPSHOT_ID,
    ChunkId,
    ManifestId,
    NodeId,
    ObjectId,
    SnapshotId,
    encode_many,
    string_length,
)
from icechunk_format.errors import InvalidInputError

raw12 = st.binary(min_size=12, max_size=12)
raw8 = st.binary(min_size=8, max_size=8)


def test_the_initial_snapshot_has_its_documented_bytes() -> None:
    assert INITIAL_SNAPSHOT_ID.raw.hex() == "0b1cc8d6787580f0e33a6534"
    assert str(INITIAL_SNAPSHOT_ID) == "1CECHNKREP0F1RSTCMT0"
    assert repr(INITIAL_SNAPSHOT_ID) == "SnapshotId('1CECHNKREP0F1RSTCMT0')"


@given(raw12)
def test_twelve_byte_ids_round_trip(raw: bytes) -> None:
    for kind in (SnapshotId, ManifestId, ChunkId):
        text = str(kind(raw))
        assert len(text) == string_length(kind.SIZE) == 20
        assert kind.parse(text) == kind(raw)
        assert kind.parse(text.lower()) == kind(raw)
        assert kind.parse_exact(text) == kind(raw)


@given(raw8)
def test_node_ids_round_trip(raw: bytes) -> None:
    text = str(NodeId(raw))
    assert len(text) == string_length(NodeId.SIZE) == 13
    assert NodeId.parse(text).raw == raw


@given(st.lists(raw12, max_size=20), st.lists(raw8, max_size=20))
def test_many_at_once_equal_one_by_one(twelve: list[bytes], eight: list[bytes]) -> None:
    for kind, raws, size in ((ChunkId, twelve, 12), (NodeId, eight, 8)):
        rows = np.frombuffer(b"".join(raws), dtype=np.uint8).reshape(-1, size)
        assert encode_many(rows) == [str(kind(raw)) for raw in raws]


@given(raw12, raw12)
def test_order_is_the_order_of_the_bytes(left: bytes, right: bytes) -> None:
    assert (SnapshotId(left) < SnapshotId(right)) == (left < right)
    assert (SnapshotId(left) == SnapshotId(right)) == (left == right)


def test_kinds_of_ids_are_never_equal() -> None:
    raw = bytes(range(12))
    assert SnapshotId(raw) != ManifestId(raw)
    assert {SnapshotId(raw): 1}.get(ChunkId(raw)) is None  # type: ignore[call-overload]


def test_ids_survive_pickling_and_are_frozen() -> None:
    node_id = NodeId(b"abcdefgh")
    assert pickle.loads(pickle.dumps(node_id)) == node_id
    assert type(pickle.loads(pickle.dumps(node_id))) is NodeId
    with pytest.raises(AttributeError):
        node_id.raw = b"hgfedcba"  # type: ignore[misc]


def test_lookalike_letters_are_read_as_people_mean_them() -> None:
    assert SnapshotId.parse("icechnkrepof1rstcmto") == INITIAL_SNAPSHOT_ID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1CECHNKREP0F1RSTCMT",
        "1CECHNKREP0F1RSTCMT00",
        "1CECHNKREP0F1RSTCMU0",
        "1CECHNKREP0F1RSTCMT1",
        "1CECHNKREP0F1RSTCM==",
        "1CECHNKREP0F1RSTCM-0",
        "1CECHNKREP0F1RSTCMTé",
        "1CECHNKREP0F1RSTCM\u0661\u0661",
        # Their capitals are I and S.
        "1CECHNKREP0F1RSTCM\u01310",
        "\u0131CECHNKREP0F1RSTCMT0",
        "1CECHNKREP0F1R\u017fTCMT0",
    ],
)
def test_malformed_text_is_refused(text: str) -> None:
    with raises(InvalidInputError, allowed="20 characters of Crockford base 32"):
        SnapshotId.parse(text)
    assert SnapshotId.parse_exact(text) is None


@pytest.mark.parametrize("text", ["1cechnkrep0f1rstcmt0", "ICECHNKREP0F1RSTCMT0"])
def test_only_the_canonical_spelling_is_the_name_of_an_object(text: str) -> None:
    assert SnapshotId.parse_exact(text) is None


@pytest.mark.parametrize(("kind", "size"), [(SnapshotId, 11), (NodeId, 12), (ChunkId, 0)])
def test_wrong_lengths_are_refused(kind: type[ObjectId], size: int) -> None:
    with pytest.raises(InvalidInputError) as caught:
        kind(bytes(size))
    assert caught.value.facts == {"found": size, "allowed": kind.SIZE}
