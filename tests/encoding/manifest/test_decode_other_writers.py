"""What other writers may have put into a manifest is read as the specification says."""

from __future__ import annotations

from typing import Any

import numpy as np
import zstandard
from helpers.files.foreign_manifests import decoded
from helpers.files.manifest_rows import see

from icechunk_format.encoding.manifest.chunk_refs import KIND_INLINE, KIND_NATIVE, KIND_VIRTUAL


def test_of_several_payloads_the_first_in_order_counts() -> None:
    dictionary = b"s3://bucket/"
    frame = zstandard.ZstdCompressor(dict_data=zstandard.ZstdCompressionDict(dictionary)).compress(
        b"s3://bucket/compressed"
    )
    everything: dict[str, Any] = {
        "chunk_id": b"c" * 12,
        "compressed_location": frame,
        "location": "s3://plain",
        "inline": b"inline",
        "offset": 5,
        "length": 6,
    }
    rows = []
    for column, name in enumerate(["", "chunk_id", "compressed_location", "location"]):
        everything.pop(name, None)
        rows.append(everything | {"index": [column]})
    refs = decoded(*rows, dictionary=dictionary)
    assert see(refs) == {
        (0,): (KIND_NATIVE, b"c" * 12, 5, 6),
        (1,): (KIND_VIRTUAL, "s3://bucket/compressed", 5, 6, None, 0),
        (2,): (KIND_VIRTUAL, "s3://plain", 5, 6, None, 0),
        (3,): (KIND_INLINE, b"inline"),
    }


def test_chunks_may_be_packed_into_one_object() -> None:
    refs = decoded(
        {"index": [0], "chunk_id": b"p" * 12, "length": 10},
        {"index": [1], "chunk_id": b"p" * 12, "offset": 10, "length": 20},
    )
    assert see(refs) == {
        (0,): (KIND_NATIVE, b"p" * 12, 0, 10),
        (1,): (KIND_NATIVE, b"p" * 12, 10, 20),
    }


def test_references_out_of_order_are_sorted_and_the_first_of_equals_kept() -> None:
    refs = decoded(
        {"index": [2, 1], "inline": b"b"},
        {"index": [0, 9], "inline": b"a"},
        {"index": [2, 1], "inline": b"late"},
    )
    assert see(refs) == {(0, 9): (KIND_INLINE, b"a"), (2, 1): (KIND_INLINE, b"b")}


def test_an_array_without_references_is_fine() -> None:
    refs = decoded()
    assert len(refs) == 0
    assert refs.select_box((), ()).tolist() == []


def test_a_scalar_has_one_reference_without_coordinates() -> None:
    refs = decoded({"index": [], "inline": b"x"})
    assert refs.coords.shape == (1, 0)
    assert refs.find(np.zeros((1, 0), dtype=np.uint32)).tolist() == [0]
    assert refs.select_box((), ()).tolist() == [0]
    assert refs.extents().shape == (0, 2)
