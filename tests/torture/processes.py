"""Processes that end at a request to the storage, or wait there; and the worlds they work in.

Children are forked from a process that reads and writes nothing itself: clients of stores and
caches do not survive a fork. So a caller starts that process by ``elsewhere``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
import pickle
import shutil
import signal
import traceback
import uuid
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.storage.faulty_storage import FaultyStorage
from torture.calls import CALLS, World, build

from icechunk_format.errors import IcechunkError
from icechunk_format.repository.state import turns
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


def dying(number: int, place: str, note: Path) -> Watch:
    """Return a watch that kills the process before or after a request.

    With "within", a local file is written and not yet moved to its name. A file has the requests
    until then, of which a run may have one more or less than another.
    """
    watch = Watch()

    def die() -> None:
        note.write_text(json.dumps(watch.requests))
        os.kill(os.getpid(), signal.SIGKILL)

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


class Server:
    """A forked process that calls functions one after another, and uses its clients again."""

    def __init__(self) -> None:
        calls, self._calls = os.pipe()
        self._answers, answers = os.pipe()
        self._child = Child(lambda: self._serve(calls, answers))
        os.close(calls)
        os.close(answers)
        self._from = os.fdopen(self._answers, "rb")

    def _serve(self, calls: int, answers: int) -> None:
        os.close(self._calls)
        os.close(self._answers)
        with os.fdopen(calls, "rb") as reader, os.fdopen(answers, "wb") as writer:
            while True:
                try:
                    function, args = pickle.load(reader)
                except EOFError:
                    return
                try:
                    answer = (True, function(*args))
                except BaseException:
                    answer = (False, traceback.format_exc()[-3000:])
                pickle.dump(answer, writer)
                writer.flush()

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        call = pickle.dumps((function, args))
        while call:
            call = call[os.write(self._calls, call) :]
        is_done, answer = pickle.load(self._from)
        assert is_done, answer
        return answer

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._calls)
        self._child.result()
        self._from.close()


@contextlib.contextmanager
def elsewhere() -> Iterator[Callable[..., Any]]:
    """Give a function that calls another one in a process that has used no client yet."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=import_once) as pool:
        yield lambda *call: pool.submit(*call).result()


def import_once() -> None:
    """Import what each child would import again; a call waits little for one that is stopped."""
    turns.PATIENCE_S = 0.02
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
        """Bring the world back; if it is in a bucket, a client of this process does so."""
        there, wanted = files_below(self.world.folder), files_below(self.copy)
        for name in there.keys() - wanted.keys():
            os.unlink(f"{self.world.folder}/{name}")
        for name, one in wanted.items():
            if there.get(name) != one:
                path = f"{self.world.folder}/{name}"
                os.makedirs(os.path.dirname(path), exist_ok=True)
                shutil.copy2(f"{self.copy}/{name}", path)
        if self.bucket is None:
            return
        store, prefix = self._store()
        prepared, found = self.prepared(), self.files()
        kept = {name for name in found if name.split("/")[0] not in LOCAL}
        if gone := [f"{prefix}/{name}" for name in kept - prepared.keys()]:
            store.delete(gone)
        for name, one in prepared.items():
            if found.get(name) != one:
                store.put(f"{prefix}/{name}", Path(self.copy, name).read_bytes())

    def prepared(self) -> dict[str, object]:
        """Return what tells whether a file is as it was prepared, by name."""
        return _prepared(self.copy, self.bucket is not None)

    def files(self) -> dict[str, object]:
        """Return the files that are there, with what tells whether they are as prepared."""
        found: dict[str, object] = files_below(self.world.folder)
        if self.bucket is not None:
            found = {name: one for name, one in found.items() if name.split("/")[0] in LOCAL}
            store, prefix = self._store()
            for batch in store.list(prefix):
                for one in batch:
                    name = one["path"].removeprefix(f"{prefix}/")
                    found[name] = one["e_tag"].strip('"')
        return found

    def left(self) -> tuple[Any, ...]:
        """Return which files are there, without what differs from run to run.

        A file is known by its name if it was prepared or is the same in each run, and else by its
        folder.
        """
        prepared = self.prepared()
        found: Counter[Any] = Counter()
        for name, one in self.files().items():
            if name in prepared:
                found[name, "as prepared" if prepared[name] == one else "changed"] += 1
                continue
            known = name.split("/")[:2]
            if "/refs/" in name:
                known = [name]
            elif name.rpartition("/")[2].startswith(STAGED):
                known = [*known[:1], STAGED]
            found["/".join(known), "new"] += 1
        return tuple(sorted(found.items()))

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
        found: dict[str, list[str]] = {}
        for name in self.files():
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
STAGED = ".storage-"


def files_below(root: str | Path) -> dict[str, tuple[int, int]]:
    """Return size and time of each file, by its name below a folder."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = f"{folder}/{name}"
            stat = os.stat(path)
            found[path[len(str(root)) + 1 :]] = (stat.st_size, stat.st_mtime_ns)
    return found


@functools.cache
def _prepared(copy: Path, is_in_bucket: bool) -> dict[str, object]:
    files = files_below(copy)
    if not is_in_bucket:
        return dict(files)
    return {
        name: hashlib.md5(Path(copy, name).read_bytes()).hexdigest() for name in files
        if name.split("/")[0] not in LOCAL and name.rpartition("/")[2][0] != "."
    }  # fmt: skip


def staged(
    root: Path,
    names: tuple[str, ...],
    spec_version: int,
    bucket: dict[str, str] | None = None,
    chunks: str = "native",
) -> Stage:
    """Build the world for some calls in a folder, and return the stage that brings it back."""
    folder, copy = root / "world", root / "copy"
    shutil.rmtree(root, ignore_errors=True)
    folder.mkdir(parents=True)
    world = World(str(folder), str(folder), spec_version, chunks=chunks)
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
