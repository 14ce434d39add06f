"""Arrays in stores of zarr-python, read and stored whole with our code alone.

``NUMBERS`` and ``STRUCT`` are data types to draw from; ``random_values`` and ``words`` make
elements of them, of any pattern of bits.
"""

from __future__ import annotations

import math
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
from zarr.core.buffer import default_buffer_prototype

from icechunk_format.zarr.fill_values import is_all_fill
from icechunk_format.zarr.zarr_json import ArrayMetadata, parse_array_metadata

if TYPE_CHECKING:
    from zarr.storage import MemoryStore

NUMBERS = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
STRUCT = [("a", "<i4"), ("b", "<f8"), ("c", "S3"), ("d", "<M8[s]")]


def stored(store: MemoryStore) -> dict[str, bytes]:
    """Return every key of a store with its bytes."""
    return {key: value.to_bytes() for key, value in store._store_dict.items()}


def put(store: MemoryStore, key: str, data: bytes) -> None:
    """Set one key of a store."""
    store._store_dict[key] = default_buffer_prototype().buffer.from_bytes(data)


def read_all(objects: dict[str, bytes], name: str = "x") -> tuple[ArrayMetadata, np.ndarray]:
    """Read a whole array from its objects with our code alone."""
    metadata = parse_array_metadata(objects[f"{name}/zarr.json"], node_path=f"/{name}")
    metadata = pickle.loads(pickle.dumps(metadata))
    codecs = pickle.loads(pickle.dumps(metadata.chunk_codecs()))
    out = metadata.fill_array(metadata.shape)
    for coords in np.ndindex(*metadata.grid.num_chunks):
        key = "/".join([name, "c", *map(str, coords)])
        if key not in objects:
            continue
        chunk = codecs.decode(objects[key], metadata.grid.full_chunk_shape(coords), what=key)
        assert chunk.flags.c_contiguous
        assert chunk.flags.aligned
        assert chunk.dtype == metadata.data_type.numpy
        lo, hi = metadata.grid.box_of(coords)
        box = tuple(slice(a, b) for a, b in zip(lo, hi, strict=True))
        out[box] = chunk[tuple(slice(0, b - a) for a, b in zip(lo, hi, strict=True))]
    return metadata, out


def write_all(metadata: ArrayMetadata, values: np.ndarray, name: str = "x") -> dict[str, bytes]:
    """Store a whole array with our code alone, leaving out chunks of fill values."""
    objects = {f"{name}/zarr.json": metadata.to_bytes()}
    codecs = metadata.chunk_codecs()
    for coords in np.ndindex(*metadata.grid.num_chunks):
        chunk = metadata.fill_array(metadata.grid.full_chunk_shape(coords))
        lo, hi = metadata.grid.box_of(coords)
        box = tuple(slice(a, b) for a, b in zip(lo, hi, strict=True))
        chunk[tuple(slice(0, b - a) for a, b in zip(lo, hi, strict=True))] = values[box]
        if not is_all_fill(chunk, metadata.fill_value):
            objects["/".join([name, "c", *map(str, coords)])] = codecs.encode(chunk)
    return objects


def assert_same(ours: np.ndarray, theirs: Any) -> None:
    """Check that two arrays are equal bit by bit, but for the order of bytes."""
    theirs = np.asarray(theirs)
    assert ours.shape == theirs.shape
    if ours.dtype.kind == "O":
        assert ours.tolist() == theirs.tolist()
        return
    assert ours.dtype == theirs.dtype.newbyteorder("=")
    # Bits, so that NaN payloads and signs of zero count.
    assert ours.tobytes() == np.ascontiguousarray(theirs.astype(ours.dtype)).tobytes()


def random_values(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return elements of random bits; texts are of letters that UTF-32 can hold."""
    rng = np.random.default_rng(seed)
    size = math.prod(shape)
    if dtype.names is not None:
        out = np.zeros(shape, dtype)
        for name in dtype.names:
            out[name] = random_values(dtype[name], shape, seed)
        return out
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "U":
        letters = np.array(list("aé漢😀z"))
        width = dtype.itemsize // 4
        words = ["".join(letters[rng.integers(0, 5, width)]) for _ in range(size)]
        return np.array(words, dtype).reshape(shape)
    raw = np.frombuffer(rng.bytes(size * dtype.itemsize), dtype).reshape(shape)
    return np.array(raw)


def words(size: int, kind: str, seed: int) -> np.ndarray:
    """Return texts or bytes of different lengths, empty ones among them."""
    rng = np.random.default_rng(seed)
    out = np.empty(size, dtype=object)
    for i, n in enumerate(rng.integers(0, 6, size)):
        out[i] = "é漢a"[: n % 4] * (n % 3) if kind == "string" else rng.bytes(int(n))
    return out
