"""Files that golden repositories refer to. Their absolute place is part of the repositories."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path("/tmp/icechunk-golden-sources")
PREFIX = f"file://{FOLDER}/"
# Before the time that the references record as that of the last change.
_CHANGED_AT = 1_700_000_000


def sources() -> dict[str, bytes]:
    """Return the bytes of each file by its name."""
    return {f"source-{n}.bin": bytes((n * 31 + i) % 256 for i in range(100)) for n in range(3)}


def put_sources() -> None:
    """Store the files, whole for every process that reads them."""
    FOLDER.mkdir(exist_ok=True)
    for name, data in sources().items():
        staged = FOLDER / f"{name}.{os.getpid()}"
        staged.write_bytes(data)
        os.utime(staged, (_CHANGED_AT, _CHANGED_AT))
        staged.replace(FOLDER / name)
