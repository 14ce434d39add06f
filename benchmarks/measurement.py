"""Measures contestants in turn: wall time, processor time and peaks of memory.

Rules of this file
------------------
1. Contestants run in one process tree within one interleaved series, in an order that changes from
   round to round, so that a busy machine or a warming JVM slows all of them alike.
2. Processor time is that of the whole process tree: this process, the JVM and Spark's Python
   workers. Processor time is more reliable than wall time if other processes use the machine.
3. Peak memory comes from a process that did nothing else.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The seconds of each round of a case, and the result of its last round."""

    wall: list[float]
    cpu: list[float]
    value: Any

    @property
    def wall_s(self) -> float:
        return statistics.median(self.wall)

    @property
    def cpu_s(self) -> float | None:
        known = [seconds for seconds in self.cpu if seconds > 0]
        return statistics.median(known) if known else None


@dataclass(kw_only=True)
class Row:
    """A line of the report.

    Parameters
    ----------
    benchmark, case
        What was measured.
    wall_s, cpu_s
        Medians, seconds.
    peak_mb
        Largest resident memory of a process that did only this, in MB (10^6 bytes).
    versus
        The case that this one is compared with, or the bound that it should keep.
    ratio
        Median over rounds of the other's seconds by this one's: above 1, this one is faster.
    cpu_ratio
        The same of processor time.
    goal
        What the ratio or the measure ought to be, in words.
    figures
        Everything else, with units in the names.
    """

    benchmark: str
    case: str
    wall_s: float
    cpu_s: float | None = None
    peak_mb: float | None = None
    versus: str = ""
    ratio: float | None = None
    cpu_ratio: float | None = None
    goal: str = ""
    figures: dict[str, float | int | str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def row(
    benchmark: str,
    case: str,
    timings: Mapping[str, Timing],
    versus: str = "",
    **fields: Any,
) -> Row:
    """Make the line of a case that `interleaved` timed, compared with another of its cases."""
    own = timings[case]
    made = Row(benchmark=benchmark, case=case, wall_s=own.wall_s, cpu_s=own.cpu_s, **fields)
    if versus:
        other = timings[versus]
        made.versus = versus
        made.ratio = _ratio(other.wall, own.wall)
        made.cpu_ratio = _ratio(other.cpu, own.cpu)
    return made


def _ratio(others: Sequence[float], own: Sequence[float]) -> float | None:
    # Within a round, since the load of the machine changes from round to round.
    # The processor time of a Spark worker that ends is lost: such rounds are not comparable.
    ratios = [a / b for a, b in zip(others, own, strict=True) if a > 0 and b > 0]
    return statistics.median(ratios) if ratios else None


def beyond(own: Timing, fixed: Timing, other: Timing) -> float | None:
    """Return how many times faster a case is than another after its fixed cost is subtracted.

    At least a hundredth of the fixed cost, which the clock can resolve.
    """
    left = [max(a - b, b / 100) for a, b in zip(own.wall, fixed.wall, strict=True)]
    return _ratio(other.wall, left)


def row_beyond(
    benchmark: str,
    case: str,
    timings: Mapping[str, Timing],
    versus: str,
    fixed: str,
    **fields: Any,
) -> Row:
    """Make the line of a case whose ratio excludes the fixed cost that another case measures."""
    own, other, empty = timings[case], timings[versus], timings[fixed]
    made = row(benchmark, case, timings, versus=versus, **fields)
    made.figures |= {"fixed_s": empty.wall_s, "ratio_with_fixed": round(made.ratio or 0, 2)}
    made.ratio = beyond(own, empty, other)
    if own.cpu_s and empty.cpu_s and other.cpu_s:
        made.cpu_ratio = other.cpu_s / max(own.cpu_s - empty.cpu_s, empty.cpu_s / 100)
    return made


def interleaved(
    cases: Mapping[str, Callable[[], Any]], *, rounds: int, warm_up: bool = True
) -> dict[str, Timing]:
    """Run all cases in turn, `rounds` times, after a round that does not count."""
    names = list(cases)
    wall: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    values: dict[str, Any] = {}
    if warm_up:
        for name in names:
            cases[name]()
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            before, started = tree_cpu_seconds(), time.perf_counter()
            values[name] = cases[name]()
            wall[name].append(time.perf_counter() - started)
            cpu[name].append(tree_cpu_seconds() - before)
            seconds = f"{wall[name][-1]:.2f} s, {cpu[name][-1]:.2f} s of processors"
            print(f"  {name}: {seconds}", file=sys.stderr, flush=True)
    return {name: Timing(wall=wall[name], cpu=cpu[name], value=values[name]) for name in names}


def tree_cpu_seconds() -> float:
    """Return the processor seconds of this process and its descendants.

    Without /proc, the result is that of this process alone.
    """
    processes = _processes()
    if not processes:
        return time.process_time()
    return sum(processes[pid][1] for pid in _tree(processes) if pid in processes) / _TICKS


def _tree(processes: Mapping[int, tuple[int, int]]) -> set[int]:
    """Return the ids of this process and its descendants."""
    wanted = {os.getpid()}
    # Children have larger ids than their parents but for wrap-around, so this repeats until stable.
    while True:
        more = {pid for pid, (parent, _) in processes.items() if parent in wanted} - wanted
        if not more:
            return wanted
        wanted |= more


def _workers() -> list[Path]:
    """Return the folders below /proc of Spark's Python workers and their daemons."""
    found = [Path("/proc", str(pid)) for pid in _tree(_processes())]
    return [path for path in found if b"daemon" in _text(path / "cmdline")]


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # The process has ended meanwhile.


def reset_peaks() -> None:
    """Reset the memory peaks of Spark's Python workers."""
    for path in _workers():
        with suppress(OSError):
            (path / "clear_refs").write_text("5")


def worker_peak_mb() -> float:
    """Return the largest resident memory of a Python worker since `reset_peaks`."""
    found = (re.search(rb"VmHWM:\s+(\d+) kB", _text(path / "status")) for path in _workers())
    return max((int(one[1]) * 1024 / 1e6 for one in found if one), default=0.0)


def _processes() -> dict[int, tuple[int, int]]:
    """Return the parent of every process and its used ticks, including those of reaped children."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue  # It has ended meanwhile.
        fields = text[text.rindex(")") + 2 :].split()
        found[int(path.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    return found


@dataclass(frozen=True, kw_only=True)
class FreshRun:
    """The result and cost of a function in its own process."""

    value: Any
    wall_s: float
    cpu_s: float
    peak_mb: float


def in_fresh_process(
    function: Callable[..., Any], *arguments: Any, imports: Sequence[str] = ()
) -> FreshRun:
    """Call an importable function in a new process, and watch its memory.

    The function's own module and `imports` count towards the memory, and not towards the time.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_watched, function, arguments, tuple(imports)).result()


def memory_of(is_wanted: bool, function: Callable[..., Any], *arguments: Any) -> float | None:
    """Return the memory peak of a function in its own process, or None."""
    return in_fresh_process(function, *arguments).peak_mb if is_wanted else None


def _watched(
    function: Callable[..., Any], arguments: tuple[Any, ...], imports: tuple[str, ...]
) -> FreshRun:
    for name in imports:
        import_module(name)
    started, cpu = time.perf_counter(), time.process_time()
    value = function(*arguments)
    return FreshRun(
        value=value,
        wall_s=time.perf_counter() - started,
        cpu_s=time.process_time() - cpu,
        peak_mb=peak_memory_mb(),
    )


def peak_memory_mb() -> float:
    """Return the largest resident memory of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return int(found[1]) * 1024 / 1e6
    # Where /proc is missing; elsewhere this also remembers what forked the process.
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


class RequestLog:
    """Records the objects that this process reads from local repositories within the block."""

    def __init__(self) -> None:
        self.reads: list[tuple[str, int]] = []
        self._lock = threading.Lock()

    def keys_below(self, prefix: str) -> int:
        """Return the number of requests for keys with a prefix."""
        return sum(key.startswith(prefix) for key, _ in self.reads)

    def bytes_below(self, prefix: str) -> int:
        """Return the number of bytes that were read from keys with a prefix."""
        return sum(size for key, size in self.reads if key.startswith(prefix))

    def _note(self, reads: list[tuple[str, int]]) -> None:
        with self._lock:
            self.reads.extend(reads)

    def __enter__(self) -> RequestLog:
        from icechunk_format.storage.local.store import LocalStorage

        get, get_many = LocalStorage.get, LocalStorage.get_many

        def logged_get(storage: Any, key: str, **bounds: Any) -> Any:
            fetched = get(storage, key, **bounds)
            self._note([(key, len(fetched.data))])
            return fetched

        def logged_get_many(storage: Any, requests: Any) -> Any:
            answers = get_many(storage, requests)
            self._note([(r.key, len(a)) for r, a in zip(requests, answers, strict=True)])
            return answers

        self._originals = get, get_many
        LocalStorage.get, LocalStorage.get_many = logged_get, logged_get_many
        return self

    def __exit__(self, *_: object) -> None:
        from icechunk_format.storage.local.store import LocalStorage

        LocalStorage.get, LocalStorage.get_many = self._originals
