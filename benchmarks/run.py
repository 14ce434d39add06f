"""Compares this library with its limits and its peers, in one run: ``python benchmarks/run.py``.

Prints the results as a table and as JSON. ``--markdown`` and ``--plots`` write a table and pictures
for readers, also from stored reports (``--from``). Names select benchmarks. ``--scale`` changes the
size of all of them (1: an array of 25 million cells, 10,000 tiny chunks, a billion planned chunks,
manifests of a million references, snapshots of 100,000 nodes).

Compare ratios, not seconds: contestants take turns within one run, so other work of the machine
slows down all of them alike.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import importlib
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from measurement import Row, tree_cpu_seconds
from presentation import as_markdown, plot, replace_table

HERE = Path(__file__).resolve().parent
# Benchmarks use the S3 server of the tests.
sys.path.append(str(HERE.parent / "tests"))
# Python workers must use this interpreter, and import the rivals of this folder.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# The reference library warns of concurrent commits on local disks; one writer runs at a time.
os.environ.setdefault("ICECHUNK_LOG", "error")

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from pyspark.sql import SparkSession

BENCHMARKS = {
    "scan": ("reading.full_scan", True),
    "tiny-chunks": ("reading.tiny_chunks", True),
    "plan": ("reading.planning", False),
    "manifest": ("reading.manifests", False),
    "selective": ("reading.selective", True),
    "queries": ("reading.queries", True),
    "real-data": ("reading.model_output", True),
    "write": ("writing.cells", True),
    "collect": ("maintenance.garbage", True),
    "verify": ("maintenance.verifying", False),
    "rewrite": ("maintenance.rewriting", False),
    "analyses": ("reading.analyses", True),
    "distant": ("reading.distant", True),
    "append": ("writing.appending", False),
    "rival-writers": ("writing.rival_writers", False),
    "points": ("workflows.points", True),
    "polygons": ("workflows.polygons", True),
    "large": ("maintenance.large_repositories", False),
    "archives": ("workflows.archives", True),
    "mirror": ("workflows.mirror", True),
    "rechunk": ("workflows.rechunking", True),
    "map_blocks": ("workflows.blocks", True),
    "analyst": ("workflows.analyst", True),
    "streams": ("workflows.streams", False),
    "observe": ("workflows.observing", True),
}
"""Modules by name, and whether they need Spark."""


@contextlib.contextmanager
def running_spark(folder: Path) -> Iterator[SparkSession]:
    """Start Spark on two cores, as large as the smallest machine that CI offers."""
    from pyspark.sql import SparkSession

    import icechunk_spark

    session = (
        SparkSession.builder.master("local[2]")
        .appName("icechunk-benchmarks")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    icechunk_spark.register(session)
    try:
        yield session
    finally:
        session.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.reports:
        stored = [json.loads(file.read_text()) for file in options.reports]
        present(options, stored)
        return 0
    if sys.version_info < (3, 12):
        print(
            "error: the reference library, which the benchmarks compare with, needs Python >= 3.12,"
            f" and this is {sys.version.split()[0]}: set PYTHON to a newer one, and run"
            " 'make clean bench'",
            file=sys.stderr,
        )
        return 2
    started = time.perf_counter()
    rows: list[Row] = []
    seconds: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="icechunk-bench-")))
        needs_spark = any(BENCHMARKS[name][1] for name in options.names)
        spark = stack.enter_context(running_spark(folder)) if needs_spark else None
        for name in options.names:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            own = folder / name
            own.mkdir()
            module = importlib.import_module(BENCHMARKS[name][0])
            began = time.perf_counter()
            rows += module.run(spark, own, options)
            seconds[name] = round(time.perf_counter() - began, 1)
        # While Spark runs, since processes that have ended are not counted.
        cpu_seconds = tree_cpu_seconds()
    print(as_table(rows))
    report = {
        "scale": options.scale,
        "rounds": options.rounds,
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {_memory_gib()} GiB",
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "seconds": round(time.perf_counter() - started, 1),
        "seconds_of": seconds,
        "cpu_seconds": round(cpu_seconds, 1),
        "rows": [row.to_json() for row in rows],
    }
    text = json.dumps(report, indent=1)
    if options.json is None:
        print(text)
    else:
        options.json.write_text(text + "\n")
    present(options, [report])
    return 0


def present(options: argparse.Namespace, reports: list[dict[str, Any]]) -> None:
    """Write the requested table and pictures of one or several runs."""
    rows = [Row(**fields) for report in reports for fields in report["rows"]]
    if options.markdown is not None:
        table = as_markdown(rows, "Runs: " + "; ".join(_described(reports)) + ".")
        before = options.markdown.read_text() if options.markdown.exists() else ""
        options.markdown.write_text(replace_table(before, table))
    if options.plots is not None:
        for file in plot(rows, options.plots):
            print(f"wrote {file}", file=sys.stderr)


def _described(reports: list[dict[str, Any]]) -> list[str]:
    """Describe time and machine of reports, with one line for equal runs."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for report in reports:
        what = f"{report['machine']}, scale {report['scale']:g}, medians of {report['rounds']}"
        alike.setdefault(what, []).append(report)
    lines = []
    for what, runs in alike.items():
        dates = sorted(run["date"] for run in runs)
        loads = sorted(run["load"] for run in runs)
        when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        load = f"{loads[0]}" if loads[0] == loads[-1] else f"{loads[0]} to {loads[-1]}"
        lines.append(f"{when}, {what}, load {load} at the end")
    return lines


def _memory_gib() -> int:
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument(
        "--scale",
        type=float,
        default=0.2,
        help="size of everything: 1 is 25 million cells and takes half an hour (default 0.2)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds (default 3)")
    parser.add_argument("--json", type=Path, help="write the JSON to this file, not to the output")
    parser.add_argument(
        "--markdown",
        type=Path,
        help="write a table of all goals to this file, between its marks where it has them",
    )
    parser.add_argument("--plots", type=Path, help="write a picture per benchmark to this folder")
    parser.add_argument(
        "--from",
        dest="reports",
        type=Path,
        nargs="+",
        default=[],
        metavar="JSON",
        help="measure nothing: show reports that --json wrote",
    )
    parser.add_argument(
        "--no-memory",
        dest="memory",
        action="store_false",
        help="skip the runs that only measure peak memory",
    )
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}: there are {', '.join(BENCHMARKS)}")
    if options.scale <= 0 or options.rounds < 1:
        parser.error("--scale must be above 0 and --rounds at least 1")
    options.names = options.names or list(BENCHMARKS)
    return options


def as_table(rows: list[Row]) -> str:
    """Return the rows as a table, with a heading for each benchmark and figures below each case."""
    head = ("case", "wall s", "CPU s", "peak MB", "x faster", "x CPU", "than", "goal")
    cells = [
        (
            row.case,
            f"{row.wall_s:.3f}",
            _number(row.cpu_s, 3),
            _number(row.peak_mb, 0),
            _number(row.ratio, 2),
            _number(row.cpu_ratio, 2),
            row.versus,
            row.goal,
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]

    def line(values: tuple[str, ...]) -> str:
        first, *rest = values
        text = first.ljust(widths[0])
        for place, value in enumerate(rest, start=1):
            is_text = head[place] in ("than", "goal")
            text += "  " + (value.ljust(widths[place]) if is_text else value.rjust(widths[place]))
        return text.rstrip()

    lines: list[str] = []
    shown = ""
    for row, values in zip(rows, cells, strict=True):
        if row.benchmark != shown:
            shown = row.benchmark
            lines += ["", f"== {shown}", line(head)]
        lines.append(line(values))
        if row.figures:
            pairs = (
                f"{name} {value:,}" if isinstance(value, int | float) else f"{name} {value}"
                for name, value in row.figures.items()
            )
            lines.append("    " + ", ".join(pairs))
    return "\n".join(lines) + "\n"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
