"""Damaged copies of metadata files, the same on every run.

Decoders must answer each with a typed error or a value, never with anything else. Two kinds of
damage: to the file as stored, which mostly breaks the header or the zstd frame, and to the
flatbuffer inside, which is wrapped again so that the damage reaches the tables.
"""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING

from icechunk_format.encoding.envelope import FileType, unwrap, wrap

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORDS = (
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    0x7FFF,
    0xFFFF,
    0x10000,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFC,
    2**32 - 1,
)


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Return a copy with a few bits, bytes or words changed; it may be shorter or longer."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        at = chance.randrange(len(changed))
        action = chance.randrange(6)
        if action == 0:
            changed[at] ^= 1 << chance.randrange(8)
        elif action == 1:
            changed[at] = chance.randrange(256)
        elif action == 2 and at + 4 <= len(changed):
            at -= at % 4
            struct.pack_into("<I", changed, at, chance.choice(_WORDS))
        elif action == 3 and at + 4 <= len(changed):
            at -= at % 4
            word = struct.unpack_from("<I", changed, at)[0] + chance.randrange(-64, 64)
            struct.pack_into("<I", changed, at, word & 0xFFFFFFFF)
        elif action == 4 and at + 2 <= len(changed):
            at -= at % 2
            struct.pack_into("<H", changed, at, chance.choice(_WORDS) & 0xFFFF)
        elif action == 5 and chance.randrange(4) == 0:
            source = chance.randrange(len(changed))
            piece = changed[source : source + chance.randrange(1, 64)]
            changed[at : at + len(piece)] = piece
    if chance.randrange(12) == 0:
        del changed[chance.randrange(1, len(changed)) :]
    if chance.randrange(24) == 0:
        changed += chance.randbytes(chance.randrange(1, 9))
    return bytes(changed)


def damaged_files(data: bytes, file_type: FileType, *, count: int, seed: int) -> Iterator[bytes]:
    """Make ``count`` damaged copies of a file: a quarter as stored, the others inside."""
    chance = random.Random(seed)
    envelope = unwrap(data, file_type=file_type, object_key="original")
    for number in range(count):
        if number % 4 == 0:
            yield mutate(data, chance)
        else:
            payload = mutate(envelope.payload, chance)
            yield wrap(payload, file_type=file_type, spec_version=envelope.spec_version, level=1)
