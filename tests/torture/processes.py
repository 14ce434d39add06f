"""Processes that end at a request to the storage, or wait there; and the worlds they work in.

Children are forked from a process that reads and writes nothing itself: clients of stores and
caches do not survive a fork. So a caller starts that process by ``elsewhere``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import shutil
import signal
import traceback
import uuid
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.storage.faulty_storage import FaultyStorage
from torture.calls import CALLS, World, build

from icechunk_format.errors import IcechunkError
from icechunk_format.storage import location as locations
from icechunk_format.storage.location import Location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class WatchedStorage(FaultyStorage):
    """Does its work, and calls a function before and after each request."""

    watch: Watch

    def _request(self, verb, key, act, *, condition=None):
        number = len(self.watch.requests)
        self.watch.requests.append((verb, f"{self.name}/{key}"))
        self.watch.before(number)
        try:
            return act()
        finally:
            # That something is not there is an answer as well.
            self.watch.after(number)

    def folders(self):
        return self._request("list", "", self.inner.folders)

    def __getattr__(self, name):
        # Staged files are those of local folders.
        if name != "delete_staged" or not hasattr(self.inner, name):
            raise AttributeError(name)
        staged = self.inner.delete_staged
        return lambda *args, **how: self._request("clean", "", lambda: staged(*args, **how))


@dataclass
class Watch:
    """The requests of this process to all storages, and what happens at them."""

    requests: list[tuple[str, str]] = field(default_factory=list)
    before: Callable[[int], None] = lambda number: None
    after: Callable[[int], None] = lambda number: None

    def __enter__(self) -> Watch:
        make = locations._make

        def watched(location: Location) -> WatchedStorage:
            storage = WatchedStorage(make(location))
            storage.watch, storage.name = self, location.url.rpartition("/")[2]
            return storage

        locations._make, self._make = watched, make
        locations._opened.clear()
        return self

    def __exit__(self, *error: object) -> None:
        locations._make = self._make
        locations._opened.clear()


def changes_something(request: tuple[str, str]) -> bool:
    return request[0] not in ("get", "head", "list")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(number: int, place: str) -> Watch:
    """Return a watch that kills the process before or after a request.

    With "within", a local file is written and not yet moved to its name.
    """
    watch = Watch()

    def at(reached: int) -> None:
        if reached == number:
            die()

    def within(reached: int) -> None:
        if reached == number:
            os.replace = os.link = lambda *names, **how: die()

    if place == "within":
        watch.before = within
    setattr(watch, "after" if place == "within" else place, at)
    return watch


# -- children -------------------------------------------------------------------------------


class Child:
    """A forked process that computes something, and sends it as its last act."""

    def __init__(self, function: Callable[[], object]) -> None:
        here, there = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(there)
            self.here = here
            return
        os.close(here)
        try:
            answer = (True, function())
        except BaseException as error:
            answer = (False, f"{type(error).__name__}: {error}\n{traceback.format_exc()[-3000:]}")
        try:
            with os.fdopen(there, "wb") as pipe:
                pickle.dump(answer, pipe)
        finally:
            os._exit(0)

    def result(self) -> Any:
        """Wait for what it sends; return None if it was killed."""
        with os.fdopen(self.here, "rb") as pipe:
            sent = pipe.read()
        status = os.waitpid(self.pid, 0)[1]
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL, status
            return None
        is_done, answer = pickle.loads(sent)
        assert is_done, answer
        return answer


def in_child(function: Callable[..., Any], *args: Any) -> Any:
    return Child(lambda: function(*args)).result()


@contextlib.contextmanager
def elsewhere() -> Iterator[Callable[..., Any]]:
    """Give a function that calls another one in a process that has used no client yet."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=import_once) as pool:
        yield lambda *call: pool.submit(*call).result()


def import_once() -> None:
    """Import what each child would import again."""
    for name in ("deltalake", "h5netcdf", "obstore.store", "virtualizarr"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


# -- worlds ---------------------------------------------------------------------------------


@dataclass
class Stage:
    """A world that can be brought back to how it was prepared for some calls."""

    world: World
    copy: Path
    bucket: dict[str, str] | None = None

    def restore(self) -> None:
        """Bring the world back; a process calls it that ends soon, as it may use a client."""
        shutil.rmtree(self.world.folder, ignore_errors=True)
        shutil.copytree(self.copy, self.world.folder)
        if self.bucket is None:
            return
        store, prefix = self._store()
        gone = [found["path"] for batch in store.list(prefix) for found in batch]
        if gone:
            store.delete(gone)
        for path in sorted(self.copy.rglob("*")):
            name = path.relative_to(self.copy).as_posix()
            if path.is_file() and path.name[0] != "." and name.split("/")[0] not in LOCAL:
                store.put(f"{prefix}/{name}", path.read_bytes())

    def download(self) -> None:
        """Bring what was prepared in the bucket to the folder that it is brought back from."""
        store, prefix = self._store()
        for batch in store.list(prefix):
            for found in batch:
                path = Path(self.world.folder, found["path"].removeprefix(f"{prefix}/"))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(bytes(store.get(found["path"]).bytes()))

    def keys(self) -> dict[str, list[str]]:
        """Return the keys below each repository."""
        names: list[str] = []
        if self.bucket is None:
            root = Path(self.world.folder)
            names = [p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()]
        else:
            store, prefix = self._store()
            for batch in store.list(prefix):
                names += [found["path"].removeprefix(f"{prefix}/") for found in batch]
        found: dict[str, list[str]] = {}
        for name in names:
            first, _, key = name.partition("/")
            if first not in LOCAL and key != ".storage-lock":
                found.setdefault(first, []).append(key)
        return found

    def _store(self) -> tuple[Any, str]:
        from obstore.store import S3Store

        options, (name, prefix) = self.bucket, self.world.url.removeprefix("s3://").split("/", 1)
        store = S3Store(
            name,
            access_key_id=options["key"],
            secret_access_key=options["secret"],
            endpoint=options["endpoint_url"],
            region="us-east-1",
            client_options={"allow_http": True},
        )
        return store, prefix


LOCAL = ("table",)


def staged(
    root: Path, names: tuple[str, ...], spec_version: int, bucket: dict[str, str] | None = None
) -> Stage:
    """Build the world for some calls in a folder, and return the stage that brings it back."""
    folder, copy = root / "world", root / "copy"
    shutil.rmtree(root, ignore_errors=True)
    folder.mkdir(parents=True)
    world = World(str(folder), str(folder), spec_version)
    if bucket is not None:
        options = {key: value for key, value in bucket.items() if key != "url"}
        world = replace(world, url=f"{bucket['url']}/{uuid.uuid4().hex[:8]}", options=options)

    def prepared() -> dict[str, Any]:
        build(world)
        for name in names:
            CALLS[name].prepare(world)
        return world.facts

    stage = Stage(world, copy, bucket)
    world.facts.update(in_child(prepared))
    if bucket is not None:
        in_child(stage.download)
    folder.rename(copy)
    return stage


def tried(name: str, world: World, watch: Watch | None = None) -> tuple[str | None, str, list]:
    """Make a call; return the name of its error, its message, and its requests."""
    watch = watch or Watch()
    try:
        with watch:
            CALLS[name].act(world)
    except IcechunkError as error:
        return type(error).__name__, str(error), watch.requests
    return None, "", watch.requests
