"""Values that are made of columns are those that calls of their class make."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass
from itertools import repeat

import pytest

from icechunk_format.encoding.frozen_values import frozen_values
from icechunk_format.encoding.ids import NodeId, SnapshotId


@dataclass(frozen=True, slots=True)
class Pair:
    left: int
    right: str = "default"


def test_values_of_columns_are_those_of_calls():
    made = frozen_values(Pair, 3, left=range(3), right=repeat("x"))
    assert made == [Pair(number, "x") for number in range(3)]
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(FrozenInstanceError):
        made[0].left = 1
    assert frozen_values(Pair, 0, left=[], right=[]) == []


@pytest.mark.parametrize("kind", [SnapshotId, NodeId])
def test_ids_of_joined_bytes_keep_zeros_at_their_ends(kind):
    parts = [bytes(kind.SIZE), b"\0" + bytes(range(1, kind.SIZE - 1)) + b"\0", b"a" * kind.SIZE]
    found = kind.many(b"".join(parts))
    assert found == [kind(part) for part in parts]
    assert {type(one) for one in found} == {kind}
    with pytest.raises(ValueError, match="multiple"):
        kind.many(b"short")
    assert kind.many(b"") == []
