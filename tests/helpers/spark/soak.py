"""A program that is killed again and again: files become commits, and commits a second repository.

``python soak.py FOLDER BATCHES DEATHS KILLS SEED`` runs two streams of one Spark session until all
files of ``FOLDER/files`` are stored. Both keep checkpoints in the folder, so whoever starts the
program again goes on. A generator draws for each attempt of a batch what strikes in it:

- a death: one request that writes never reaches the store, or its answer is lost, and the query
  fails (``DEATHS`` in all, about);
- a kill: the whole process group gets SIGKILL after a while (``KILLS`` in all, about).

``FOLDER/struck`` has a line for each. What an attempt meets follows from the seed and from how many
attempts there were before.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

SCHEMA = "time bigint, x double, t double"
STATIONS = 20


def rows_of(number: int, places: int) -> list[dict[str, float]]:
    """Return the rows of a file: all stations at one of a few times, so cells are rewritten."""
    draw = random.Random(number)
    time = number % places
    return [{"time": time, "x": float(x), "t": draw.gauss(280, 10)} for x in range(STATIONS)]


def write_files(folder: Path, count: int, places: int) -> None:
    """Write one file for each batch; Spark takes them in the order of their times."""
    folder.mkdir(parents=True)
    for number in range(count):
        file = folder / f"{number:06}.json"
        file.write_text("\n".join(map(json.dumps, rows_of(number, places))))
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


class Fate:
    """Draws what strikes in the attempts of batches, and notes it."""

    def __init__(self, folder: Path, seed: int, deaths: float, kills: float) -> None:
        self._notes = folder / "struck"
        self._attempts = folder / "attempts"
        self._seed = seed
        self._rates = deaths, kills
        self._left = -1
        self._kind = ""
        self._number = -1

    def draw(self, number: int) -> None:
        """Decide for one attempt of a batch."""
        with self._attempts.open("a") as notes:
            notes.write(f"{number}\n")
        rng = random.Random(1000 * self._seed + self._attempts.read_text().count("\n"))
        deaths, kills = self._rates
        drawn, self._number, self._left = rng.random(), number, -1
        if drawn < deaths:
            self._kind = rng.choice(["before", "lost"])
            self._left = rng.randint(1, 10)
        elif drawn < deaths + kills:
            threading.Timer(rng.uniform(0, 0.8), self._kill).start()

    def _kill(self) -> None:
        self._note("kill")
        os.killpg(0, signal.SIGKILL)

    def _note(self, what: str) -> None:
        with self._notes.open("a") as notes:
            notes.write(f"{what} {self._number}\n")

    def wrapped(self, original: Any) -> Any:
        """Return a request that writes, in which a death may strike."""
        from icechunk_format.errors import StorageError

        def call(store: Any, *arguments: Any, **keywords: Any) -> Any:
            self._left -= 1
            if self._left != 0:
                return original(store, *arguments, **keywords)
            self._note(self._kind)
            if self._kind == "lost":
                original(store, *arguments, **keywords)
                raise StorageError("the answer was lost", outcome_unknown=True)
            raise RuntimeError("the process died here")

        return call


def main() -> None:
    folder, batches = Path(sys.argv[1]), int(sys.argv[2])
    rates = (int(text) / batches for text in sys.argv[3:5])
    fate = Fate(folder, int(sys.argv[5]), *rates)
    from helpers.spark.session import running_spark

    from icechunk_format.storage.local.store import LocalStorage
    from icechunk_spark.changes.batches import PlannedBatches

    for name in ("put", "put_many", "copy"):
        setattr(LocalStorage, name, fate.wrapped(getattr(LocalStorage, name)))
    original = PlannedBatches.__call__

    def call(self: PlannedBatches, batch: Any, number: int) -> None:
        fate.draw(number)
        original(self, batch, number)

    PlannedBatches.__call__ = call  # type: ignore[method-assign]
    with running_spark(folder / "warehouse") as spark:
        stored, copied = str(folder / "stored"), str(folder / "copied")

        def sink(rows: Any, name: str, target: str) -> Any:
            writer = rows.writeStream.format("icechunk").trigger(availableNow=True)
            writer = writer.options(group="/", dims="time,x", chunks=f"time=1,x={STATIONS}")
            return writer.option("checkpointLocation", str(folder / name)).start(target)

        def store() -> Any:
            rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
            return sink(rows.json(str(folder / "files")), "checkpoint-stored", stored)

        def copy() -> Any:
            rows = spark.readStream.format("icechunk").options(group="/", maxSnapshotsPerTrigger=50)
            return sink(rows.load(stored), "checkpoint-copied", copied)

        first = store()
        while first.isActive and not is_there(stored):
            time.sleep(0.5)
            first = restarted(store, first)
        second, is_last = None, False
        while not is_last or second.isActive or second.exception() is not None:
            first = restarted(store, first)
            if second is None or not second.isActive:
                # A copy is the last one where all batches were stored before it began.
                is_last = not first.isActive and first.exception() is None
                second = copy()
            time.sleep(0.5)


def is_there(path: str) -> bool:
    """Tell whether the first batch was stored."""
    from icechunk_format import Repository

    if not Repository.exists(path):
        return False
    return any("txnVersion" in info.metadata for info in Repository.open(path).ancestry())


def restarted(start: Any, query: Any) -> Any:
    """Return a query, started again where it failed."""
    return query if query.isActive or query.exception() is None else start()


if __name__ == "__main__":
    main()
