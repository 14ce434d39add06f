"""A program for the reference library of any release: reads, writes or continues a repository.

Reads a list of ``[command, folder, spec_version, authorized]`` as JSON, with the commands ``read``,
``write`` and ``append``, and prints what each repository contains then: for each branch and tag its
snapshot, and for each of these its history, its keys with digests, and the values of its arrays.
Imports only what a release of the reference needs, since each runs in an environment of its own.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import math
import sys
from typing import Any

import numpy as np

CHUNKS = 4
STEPS = 10


def plain(values: Any) -> Any:
    """Return elements as JSON: bytes as hexadecimal digits, times as integers, NaN as text."""
    if isinstance(values, np.ndarray):
        if values.dtype.names is not None:
            return [plain(values[name]) for name in values.dtype.names]
        if values.dtype.kind in "mM":
            values = values.astype(values.dtype.newbyteorder("=")).view("i8")
        if values.dtype.kind == "V":
            values = np.frombuffer(values.tobytes(), f"S{values.dtype.itemsize}")
        return [plain(value) for value in values.ravel().tolist()]
    if isinstance(values, bytes):
        return values.rstrip(b"\0").hex()
    if isinstance(values, complex):
        return [plain(values.real), plain(values.imag)]
    if isinstance(values, float) and (not math.isfinite(values) or values == 0):
        return str(values)
    return values


def digest(data: bytes) -> str:
    """Return a short digest of the bytes of a key."""
    return hashlib.sha256(data).hexdigest()[:16]


def open_repository(folder: str, authorized: list[str]) -> Any:
    """Open a repository of a folder; chunks may be virtual below some prefixes."""
    import icechunk

    icechunk.set_logs_filter("off")
    given: dict[str, Any] = {}
    if authorized:
        access = getattr(icechunk.Credentials, "LocalFileSystemAccess", None)
        if access is not None:
            access = access()
        given["authorize_virtual_chunk_access"] = dict.fromkeys(authorized, access)
    return icechunk.Repository.open(icechunk.local_filesystem_storage(folder), **given)


def stored(store: Any) -> dict[str, bytes]:
    """Return every key of a store of zarr with its bytes."""
    from zarr.core.buffer import default_buffer_prototype

    async def collect() -> dict[str, bytes]:
        found = {}
        async for key in store.list():
            value = await store.get(key, default_buffer_prototype())
            found[key] = value.to_bytes()
        return found

    return asyncio.run(collect())


def contents(repository: Any) -> dict[str, Any]:
    """Return what a repository contains, as JSON."""
    branches = {name: repository.lookup_branch(name) for name in repository.list_branches()}
    tags = {name: repository.lookup_tag(name) for name in repository.list_tags()}
    versions = {}
    for snapshot in sorted({*branches.values(), *tags.values()}):
        store = repository.readonly_session(snapshot_id=snapshot).store
        keys = stored(store)
        versions[snapshot] = {
            "history": [
                [info.id, info.message, microseconds(info.written_at), dict(info.metadata)]
                for info in repository.ancestry(snapshot_id=snapshot)
            ],
            "keys": {key: digest(data) for key, data in sorted(keys.items())},
            "values": values_of(store, keys),
        }
    return {"branches": branches, "tags": tags, "versions": versions}


def microseconds(at: datetime.datetime) -> int:
    """Return the microseconds from 1970 to a time."""
    return (at - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(
        microseconds=1
    )


def values_of(store: Any, keys: dict[str, bytes]) -> dict[str, Any]:
    """Return the elements of each array by its path."""
    import zarr

    zarr.config.set({"array.rectilinear_chunks": True})
    found = {}
    for key, data in sorted(keys.items()):
        if key.endswith("zarr.json") and json.loads(data)["node_type"] == "array":
            path = key.removesuffix("zarr.json").rstrip("/")
            array = zarr.open_array(store, path=path, mode="r")
            found[f"/{path}"] = plain(np.asarray(array[...]))
    return found


def write(folder: str, spec_version: int) -> None:
    """Create a repository with what this release of the reference has."""
    import icechunk
    import zarr

    icechunk.set_logs_filter("off")
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 40
    # Releases before 2.0 write spec version 1 alone, and have no argument for it.
    given = {} if icechunk.__version__ < "2" else {"spec_version": spec_version}
    storage = icechunk.local_filesystem_storage(folder)
    repository = icechunk.Repository.create(storage, config, **given)
    repository.save_config()
    session = repository.writable_session("main")
    root = zarr.create_group(session.store, attributes={"title": "päer"})
    for name, dtype in (("time", "int64"), ("t2m", "float32"), ("flag", "bool")):
        array = root.create_array(
            name, shape=(STEPS,), chunks=(CHUNKS,), dtype=dtype, dimension_names=["time"]
        )
        array[:] = np.arange(STEPS).astype(dtype)
    shards = root.create_group("deep/er").create_array(
        "shards", shape=(8, 8), shards=(4, 8), chunks=(2, 2), dtype="int16", fill_value=-1
    )
    shards[:4] = np.arange(32).reshape(4, 8)
    first = session.commit("first", metadata={"number": 1, "of": ["a", None]})
    repository.create_tag("v1", first)
    repository.create_tag("gone", first)
    repository.delete_tag("gone")
    repository.create_branch("dev", first)
    session = repository.writable_session("dev")
    group = zarr.open_group(session.store, mode="a")
    group["t2m"][2:5] = -1.5
    del group["deep/er/shards"]
    session.commit("second")
    session = repository.writable_session("main")
    group = zarr.open_group(session.store, mode="a")
    group["t2m"].resize((STEPS + 3,))
    group["t2m"][STEPS:] = [7, 8, 9]
    group.attrs["more"] = {"a": 1.5}
    if spec_version > 1:
        session.commit("to be amended")
        session = repository.writable_session("main")
        zarr.open_group(session.store, mode="a")["flag"][0] = True
        session.amend("amended")
        session = repository.rearrange_session("main")
        session.move("/deep/er", "/deeper")
        session.commit("moved")
    else:
        session.commit("third")
    if hasattr(repository, "rewrite_manifests"):
        repository.rewrite_manifests("rewritten", branch="main")


def append(repository: Any) -> None:
    """Commit on top of a repository: new values, an attribute and an array."""
    import zarr

    session = repository.writable_session("main")
    group = zarr.open_group(session.store, mode="a")
    group.attrs["appended"] = True
    group.create_array("appended", data=np.arange(6.0), chunks=(2,))
    session.commit("appended by the reference", metadata={"number": 2})


def done(command: str, folder: str, spec_version: int, authorized: list[str]) -> Any:
    """Do one thing; return what the repository contains then, or the last line of an error."""
    try:
        if command == "write":
            write(folder, spec_version)
        repository = open_repository(folder, authorized)
        if command == "append":
            append(repository)
        return contents(repository)
    except BaseException as error:  # panics of the reference are no exceptions
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    json.dump([done(*work) for work in json.load(sys.stdin)], sys.stdout)
