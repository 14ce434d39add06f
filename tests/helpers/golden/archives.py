"""The golden repositories of all versions, which stay in ``tests/golden/``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from helpers.builder import new_place
from helpers.golden.contents import put_objects, unpacked

HERE = Path(__file__).parents[2] / "golden"
ARCHIVES = sorted(HERE.glob("*/*.tar.xz"))
NAMES = [f"{file.parent.name}/{file.name.partition('.')[0]}" for file in ARCHIVES]
REPOSITORIES = [name for name in NAMES if not name.endswith(("/records", "/virtualized"))]
VERSIONS = sorted({name.partition("/")[0] for name in NAMES})


@dataclass(frozen=True)
class Golden:
    """The objects of a repository, and what it contains."""

    objects: dict[str, bytes]
    expected: dict[str, Any]

    def place(self) -> str:
        """Return a place in memory with a copy of the repository."""
        place = new_place()
        put_objects(place, self.objects)
        return place

    def folder(self, path: Path) -> str:
        """Write the repository into a folder."""
        for key, data in self.objects.items():
            (path / key).parent.mkdir(parents=True, exist_ok=True)
            (path / key).write_bytes(data)
        return str(path)


@cache
def golden(name: str) -> Golden:
    """Return a repository by its version and name."""
    objects = unpacked(HERE / f"{name}.tar.xz")
    return Golden(objects, json.loads(objects.pop("expected.json")))
