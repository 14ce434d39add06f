"""Defines the result of parsing one array of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedArray:
    """An array of a file, and its references."""

    path: str
    """Path in the file, without a leading ``/``."""
    json_document: str
    """The ``zarr.json`` with sorted keys, so that equal documents are parsed once."""
    coords: NDArray[np.int64]
    """Chunk indices, ``int64 (n, ndim)``."""
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    locations: list[str] | None = None
    """URL of each reference; None if all references are to the file itself."""
    inline: Sequence[bytes | None] | None = None
    """Encoded chunk of each inline reference, None for others; None without inline references."""
    unreferable: Unreferable | None = None
    """Set if references cannot represent the values; the array then has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreferable:
    """A dataset of an HDF5 file that is read with h5py, since no codecs decode its chunks."""

    dataset: str
    """The name in the file, with a leading ``/``."""
    reason: str
