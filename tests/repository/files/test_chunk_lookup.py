"""Readers find each reference in the first manifest whose extents hold it."""

from __future__ import annotations

import numpy as np

from icechunk_format.encoding.manifest.chunk_refs import native_refs
from icechunk_format.repository.files.chunk_lookup import visible_rows


def _refs(*places: int):
    n = len(places)
    coords = np.array(places, dtype=np.uint32).reshape(n, 1)
    return native_refs(
        coords,
        chunk_ids=np.zeros((n, 12), dtype=np.uint8),
        lengths=np.ones(n, dtype=np.uint64),
    )


def test_an_earlier_manifest_hides_places_that_it_leaves_empty() -> None:
    extents, box = np.array([[2, 6]]), np.array([[0, 5]])
    earlier = np.array([[[0, 3]], [[5, 9]]])
    refs = _refs(1, 2, 3, 4, 5, 6)
    rows = visible_rows(refs, extents, box, earlier)
    assert refs.coords[rows, 0].tolist() == [3, 4]


def test_references_inside_extents_are_found_without_overlap() -> None:
    extents = np.array([[1, 3]])
    assert visible_rows(_refs(1, 2), extents, extents, extents[:0].reshape(0, 1, 2)).size == 2
