"""Puts our implementation in the place of the compiled module of the reference's wheel.

The Python half of the wheel (signatures, configuration, conversions) is kept; the classes that do
the work are ours: `Storage`, `PyRepository`, `PySession` and `PyStore`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.machinery
import importlib.util
import inspect
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from icechunk_format import errors
from icechunk_format.storage.location import Location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NAME = "icechunk._icechunk_python"


@cache
def compiled() -> ModuleType:
    """Return the compiled module of the wheel, without importing the wheel."""
    package = importlib.util.find_spec("icechunk")
    assert package is not None
    assert package.submodule_search_locations is not None
    folder = package.submodule_search_locations[0]
    path = next(
        str(path) for path in Path(folder).glob("_icechunk_python.*") if path.suffix != ".pyi"
    )
    loader = importlib.machinery.ExtensionFileLoader(NAME, path)
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


REAL: dict[str, Any] = {}


def install() -> None:
    """Let every later ``import icechunk`` find our implementation."""
    from helpers.peers import repository, session

    module = compiled()
    _keep_conflicts()
    ours = {
        "Storage": Storage,
        "PyRepository": repository.PyRepository,
        "PySession": session.PySession,
        "PyStore": session.PyStore,
        "BasicConflictSolver": session.BasicConflictSolver,
        "ConflictDetector": session.ConflictDetector,
        "SnapshotInfo": repository.SnapshotInfo,
        "Diff": session.Diff,
        "UpdateType": repository.UpdateType,
        "_upgrade_icechunk_repository": repository.upgraded,
    }
    for name, value in ours.items():
        REAL[name] = getattr(module, name)
        setattr(module, name, value)
    sys.modules[NAME] = module
    import icechunk

    icechunk._icechunk_python = module
    icechunk.set_logs_filter(None)


@cache
def s3_server() -> Any:
    """Return a server that runs to the end of this process."""
    from helpers.servers.s3 import running_s3_server

    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    server = stack.enter_context(running_s3_server())
    store = server.raw_store("testbucket")
    store.put("first", b"")
    store.delete("first")
    return server


S3_FOLDER = os.environ.get("PEERS_S3")
"""A folder in place of the server, for tests that compare times below a second."""


class FolderClient:
    """The call of ``boto3`` clients that such tests make."""

    def list_objects(self, Bucket: str, Prefix: str) -> dict[str, Any]:
        root = Path(f"{S3_FOLDER}/{Bucket}")
        files = {str(one.relative_to(root)): one for one in root.rglob("*") if one.is_file()}
        keys = [key for key in sorted(files) if key.startswith(Prefix)]
        return {"Contents": [{"Key": key, "Size": files[key].stat().st_size} for key in keys]}


def s3_client(*_: Any, **__: Any) -> Any:
    """Return a client of that server, as ``boto3.client`` does."""
    if S3_FOLDER is not None:
        return FolderClient()
    import botocore.session

    server = s3_server()
    return botocore.session.get_session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=server.endpoint_url,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
    )


class Iterating:
    """Values that both kinds of loops read, as those of the compiled module."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = iter(values)

    def __iter__(self) -> Iterating:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._values)
        except errors.IcechunkError as error:
            raise translated(error) from error

    def __aiter__(self) -> Iterating:
        return self

    async def __anext__(self) -> Any:
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        self._values = iter(())


def iterated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a generator function whose values both kinds of loops read."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Iterating:
        return Iterating(function(*args, **kwargs))

    return run


class Storage:
    """A place of a repository; those in memory are temporary folders, which processes share."""

    def __init__(self, location: Location) -> None:
        self.location = location

    def __repr__(self) -> str:
        return f"Storage({str(self.location)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Storage) and self.location == other.location

    def __hash__(self) -> int:
        return hash(str(self.location))

    @classmethod
    def new_in_memory(cls) -> Storage:
        folder = tempfile.mkdtemp(prefix="peers-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return cls(Location(folder))

    @classmethod
    def new_local_filesystem(cls, path: str) -> Storage:
        return cls(Location(str(path)))

    @classmethod
    def new_s3(cls, config: Any, bucket: str, prefix: str | None, *_: Any, **__: Any) -> Storage:
        """Return a place in a server of ours, whatever server is named; see `FolderClient`."""
        if S3_FOLDER is not None:
            return cls(Location(f"{S3_FOLDER}/{bucket}/{prefix or ''}".rstrip("/")))
        options = s3_server().storage_options
        return cls(Location(f"s3://{bucket}/{prefix or ''}".rstrip("/"), options=options))

    new_s3_object_store = new_s3

    def default_settings(self) -> Any:
        return compiled().StorageSettings()


def __getattr__(name: str) -> Any:
    return getattr(compiled(), name)


def translated(error: errors.IcechunkError) -> Exception:
    """Return the reference's error for one of ours."""
    module = compiled()
    if isinstance(error, errors.ConflictError):
        if hasattr(error, "found"):
            return failed_rebase(error)
        if "expected" in error.facts:
            expected, found = error.facts["expected"], error.facts["found"]
            made: Exception = module.ConflictError(expected, found, str(error))
            return made
    # Their tests look for some of their words.
    words = "repository status is read-only: " if isinstance(error, errors.ReadOnlyError) else ""
    failed: Exception = module.IcechunkError(f"{words}{error}")
    return failed


def _word(kind: Any) -> str:
    kinds = compiled().ConflictType
    return next(name for name in _ORDER if getattr(kinds, name) == kind)


def failed_rebase(error: Any) -> Exception:
    module = compiled()
    conflicts = [
        module.Conflict(
            getattr(module.ConflictType, _CONFLICTS[one.kind.name]),
            str(one.path),
            None if one.coords is None else one.coords.tolist(),
        )
        for one in error.found
    ]
    order = list(_ORDER)
    conflicts.sort(key=lambda one: order.index(_word(one.conflict_type)))
    made: Exception = module.RebaseFailedError(error.facts["snapshots"][0], conflicts)
    return made


def _keep_conflicts() -> None:
    """Let errors of conflicts hold them, since the reference's error does."""
    from icechunk_format.repository.state import conflict_errors

    make = conflict_errors.conflicting

    def conflicting(storage: Any, branch: str, found: Any) -> errors.ConflictError:
        error = make(storage, branch, found)
        error.found = list(found)
        return error

    conflict_errors.conflicting = conflicting


# The order in which the reference reports the conflicts of a node.
_ORDER = (
    *("NewNodeConflictsWithExistingNode", "NewNodeInInvalidGroup"),
    *("ZarrMetadataUpdateOfDeletedArray", "ZarrMetadataUpdateOfDeletedGroup"),
    *("ZarrMetadataDoubleUpdate", "ChunksUpdatedInDeletedArray", "ChunksUpdatedInUpdatedArray"),
    *("ChunkDoubleUpdate", "DeleteOfUpdatedArray", "DeleteOfUpdatedGroup"),
    "MoveOperationCannotBeRebased",
)
_CONFLICTS = {
    "CHUNKS_WRITTEN_TWICE": "ChunkDoubleUpdate",
    "CELLS_WRITTEN_TWICE": "ChunkDoubleUpdate",
    "CHUNKS_OF_UPDATED_ARRAY": "ChunksUpdatedInUpdatedArray",
    "CHUNKS_OF_DELETED_ARRAY": "ChunksUpdatedInDeletedArray",
    "METADATA_UPDATED_TWICE": "ZarrMetadataDoubleUpdate",
    "METADATA_OF_DELETED_NODE": "ZarrMetadataUpdateOfDeletedArray",
    "DELETED_NODE_CHANGED": "DeleteOfUpdatedArray",
    "NODE_EXISTS": "NewNodeConflictsWithExistingNode",
    "NO_GROUP_FOR_NODE": "NewNodeInInvalidGroup",
    "NODE_IN_DELETED_GROUP": "NewNodeInInvalidGroup",
    "MOVED_NODE_GONE": "MoveOperationCannotBeRebased",
    "MOVED_THERE": "MoveOperationCannotBeRebased",
}


def in_their_words(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises the reference's errors instead of ours."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_later(*args: Any, **kwargs: Any) -> Any:
            try:
                return await function(*args, **kwargs)
            except errors.IcechunkError as error:
                raise translated(error) from error

        return run_later

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except errors.IcechunkError as error:
            raise translated(error) from error

    return run


def as_reference(cls: type) -> type:
    """Give a class the reference's errors, and its methods names that end in ``_async``."""
    for name, value in list(vars(cls).items()):
        if name.startswith("__") or isinstance(value, property):
            continue
        inner = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if not callable(inner):
            continue
        kind = type(value) if isinstance(value, (classmethod, staticmethod)) else (lambda f: f)
        setattr(cls, name, kind(in_their_words(inner)))
        if not name.startswith("_") and f"{name}_async" not in vars(cls):
            setattr(cls, f"{name}_async", kind(_awaitable(in_their_words(inner))))
    return cls


def _awaitable(function: Callable[..., Any]) -> Callable[..., Any]:
    async def later(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return later


def record(kind: str, /, **values: Any) -> SimpleNamespace:
    """Return a value with attributes, for results that tests only read."""
    return type(kind, (SimpleNamespace,), {})(**values)
