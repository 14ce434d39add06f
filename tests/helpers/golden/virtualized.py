"""A repository of virtualized files, at fixed places that its record names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.archives import files as made
from helpers.archives.running import virtualize

if TYPE_CHECKING:
    from typing import Any

FOLDER = Path("/tmp/icechunk-golden-files")
VIRTUALIZED = "memory://golden-virtualized"
FILES, REPOSITORY = "files", "repository"
# Before the time that the references record as that of the last change.
_CHANGED_AT = 1_700_000_000


def make_files() -> dict[str, bytes]:
    """Make three files, and return their bytes by name."""
    return {
        Path(path).name: Path(path).read_bytes() for path in made.archive(FOLDER, made.compressed)
    }


def put_files(files: dict[str, bytes]) -> list[str]:
    """Store files with a fixed time of change, whole for every process that reads them."""
    FOLDER.mkdir(exist_ok=True)
    for name, data in files.items():
        staged = FOLDER / f"{name}.{os.getpid()}"
        staged.write_bytes(data)
        os.utime(staged, (_CHANGED_AT, _CHANGED_AT))
        staged.replace(FOLDER / name)
    return [str(FOLDER / name) for name in sorted(files)]


def add_files(files: list[str]) -> Any:
    """Add to the repository those of the files that it does not have."""
    return virtualize(files, VIRTUALIZED)
