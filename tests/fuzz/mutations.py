"""Damages files by their structure: bytes, members of documents, configurations of codecs.

Every function draws from a ``random.Random`` alone, so a case is known by its seed.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from helpers.damage.files import mutate as damage_bytes

from icechunk_format.encoding.envelope import unwrap, wrap

if TYPE_CHECKING:
    import random

    from icechunk_format.encoding.envelope import FileType

HOSTILE_NUMBERS = (
    0, 1, -1, 2, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64,
    10**9, 10**30, -(2**63), 0.5, 1e308, -1e308, 1e-320, float("nan"), float("inf"),
)  # fmt: skip
HOSTILE_TEXTS = (
    "", ".", "..", "../../etc/passwd", "/", "//", "a/b", "a\x00b", "\x1b]0;owned\x07\x1b[2J",
    "\u202e", "\ud7ff", "NaN", "Infinity", "0x7fc00000", "AAAA", "A" * 5000, "c" * 70, "%2e%2e/",
    "int4", "r8", "zstd", "blosc", "gzip", "sharding_indexed", "bytes", "transpose", "vlen-utf8",
    "crc32c", "string", "float64", "numcodecs.lz4", "numpy.datetime64", "struct",
    "fixed_length_utf32", "big", "little", "file:///etc/passwd", "http://169.254.169.254/",
    "s3://b/../c", "vcc://x/..", "regular", "default", "rectangular", "rectilinear", "cast_value",
    "scale_offset", "numcodecs.fixedscaleoffset",
)  # fmt: skip


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Damage bytes, or leave nothing of them."""
    if len(data) < 8:
        return chance.randbytes(chance.randrange(1, 40))
    if chance.random() < 0.01:
        return data[: chance.randrange(len(data))]
    return damage_bytes(data, chance)


def damaged_file(data: bytes, chance: random.Random, file_type: FileType) -> bytes:
    """Damage a metadata file: mostly the tables within, sometimes the file as stored."""
    if chance.random() < 0.15:
        return damaged(data, chance)
    envelope = unwrap(data, file_type=file_type, object_key="original")
    payload = damaged(envelope.payload, chance)
    return wrap(payload, file_type=file_type, spec_version=envelope.spec_version, level=1)


def damaged_tree(tree: Any, chance: random.Random) -> Any:
    """Return a document with a few members replaced, moved, dropped or nested."""
    tree = copy.deepcopy(tree)
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        places = list(_places(tree))
        holder, key = chance.choice(places)
        action = chance.randrange(8)
        if action == 0:
            del holder[key]
        elif action == 1:
            other, name = chance.choice(places)
            holder[key] = copy.deepcopy(other[name]) if _is_there(other, name) else None
        elif action == 2 and isinstance(holder, dict):
            holder[chance.choice(HOSTILE_TEXTS)] = hostile_value(chance)
        elif action == 3 and isinstance(holder[key], list):
            is_flat = not any(isinstance(item, dict | list) for item in holder[key])
            holder[key] = holder[key][:9] * chance.choice((0, 2, 3, 1000 if is_flat else 4))
        elif action == 4 and isinstance(holder[key], int | float):
            holder[key] = chance.choice(HOSTILE_NUMBERS)
        elif action == 5:
            for _ in range(chance.choice((1, 3, 200))):
                holder[key] = [holder[key]] if chance.random() < 0.5 else {"name": holder[key]}
        else:
            holder[key] = hostile_value(chance)
        if not isinstance(tree, dict | list) or not tree:
            return tree
    return tree


def damaged_json(data: bytes, chance: random.Random) -> bytes:
    """Damage a JSON document: mostly its members, sometimes its text."""
    if chance.random() < 0.1:
        return damaged(data, chance)
    try:
        return json.dumps(damaged_tree(json.loads(data), chance)).encode()
    except RecursionError:
        # Deeper than anybody writes by recursion, and easily written without.
        return b"[" * 100_000 + b"]" * 100_000


def hostile_value(chance: random.Random) -> Any:
    """Return something that hardly any member may be."""
    kind = chance.randrange(7)
    if kind == 0:
        return chance.choice(HOSTILE_NUMBERS)
    if kind == 1:
        return chance.choice(HOSTILE_TEXTS)
    if kind == 2:
        return None
    if kind == 3:
        return chance.random() < 0.5
    if kind == 4:
        return [chance.choice(HOSTILE_NUMBERS) for _ in range(chance.choice((0, 1, 3, 40)))]
    if kind == 5:
        return {chance.choice(HOSTILE_TEXTS): chance.choice(HOSTILE_TEXTS)}
    return {"name": chance.choice(HOSTILE_TEXTS), "configuration": {}}


def _places(tree: Any) -> Any:
    if isinstance(tree, dict):
        for key in list(tree):
            yield tree, key
            yield from _places(tree[key])
    elif isinstance(tree, list):
        for key in range(len(tree)):
            yield tree, key
            yield from _places(tree[key])


def _is_there(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)
