"""Reads the contents of a repository with this library, and makes archives of repositories."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from typing import TYPE_CHECKING, Any

import numpy as np
from helpers.golden.peer import digest, plain
from helpers.sessions.model import stored_contents

from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.tables import open_dataset
from icechunk_format.tables.reading import run_scan
from icechunk_format.zarr.zarr_json import parse_array_metadata

if TYPE_CHECKING:
    from pathlib import Path


def contents(repository: Repository, authorized: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what a repository contains, as ``helpers.golden.peer`` does."""
    branches = {name: str(found) for name, found in repository.branches().items()}
    tags = {name: str(found) for name, found in repository.tags().items()}
    versions = {}
    for snapshot in sorted({*branches.values(), *tags.values()}):
        keys = stored_contents(repository, repository.resolve(snapshot=snapshot), authorized)
        versions[snapshot] = {
            "history": [
                [str(info.id), info.message, info.flushed_at, dict(info.metadata)]
                for info in repository.ancestry(snapshot=snapshot)
            ],
            "keys": {key: digest(data) for key, data in sorted(keys.items())},
            "values": values_of(keys),
        }
    return {"branches": branches, "tags": tags, "versions": versions}


def values_of(keys: dict[str, bytes]) -> dict[str, Any]:
    """Return the elements of each array by its path."""
    found = {}
    for key, document in sorted(keys.items()):
        if key.endswith("zarr.json") and json.loads(document)["node_type"] == "array":
            path = f"/{key.removesuffix('zarr.json').rstrip('/')}"
            found[path] = plain(elements(path, keys))
    return found


def elements(path: str, keys: dict[str, bytes]) -> np.ndarray:
    """Return the elements of an array, given every key of a version with its bytes."""
    metadata = parse_array_metadata(keys[f"{path[1:]}/zarr.json"], node_path=path)
    codecs, grid = metadata.chunk_codecs(), metadata.grid
    out = metadata.fill_array(metadata.shape)
    for coords in np.ndindex(*grid.num_chunks):
        data = keys.get("/".join([path[1:], "c", *map(str, coords)]))
        if data is not None:
            chunk = codecs.decode(data, grid.full_chunk_shape(coords), what=path)
            lo, hi = grid.box_of(coords)
            inside = tuple(slice(0, b - a) for a, b in zip(lo, hi, strict=True))
            out[tuple(slice(a, b) for a, b in zip(lo, hi, strict=True))] = chunk[inside]
    return out


def rows(repository: Repository, snapshot: str) -> list[dict[str, Any]]:
    """Return the decoded rows of a version, in the order of all their columns, as JSON."""
    dataset = open_dataset(repository, repository.resolve(snapshot=snapshot))
    plan = dataset.plan(dataset.table())
    found = [
        {
            name: value if isinstance(value, str | None) else str(value)
            for name, value in row.items()
        }
        for task in plan.tasks
        for batch in run_scan(plan.context, task)
        for row in batch.to_pylist()
    ]
    return sorted(found, key=lambda row: json.dumps(row, sort_keys=True))


def packed(files: dict[str, bytes]) -> bytes:
    """Return files by name as an archive whose bytes depend on the files only."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return lzma.compress(out.getvalue(), preset=9)


def unpacked(file: Path) -> dict[str, bytes]:
    """Return the files of an archive by their names."""
    with tarfile.open(file) as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive]
        return {name: member.read() for name, member in members if member is not None}


def objects_of(place: str) -> dict[str, bytes]:
    """Return the objects of a repository by their keys."""
    storage = open_storage(Location.of(place))
    return {found.key: storage.get(found.key).data for found in storage.list("")}


def put_objects(place: str, objects: dict[str, bytes]) -> None:
    """Store the objects of a repository."""
    storage = open_storage(Location.of(place))
    for key, data in objects.items():
        storage.put(key, data)
