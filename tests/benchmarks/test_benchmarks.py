"""Every benchmark runs, sees the same values as its peers, and reports what it promises.

Sizes here say nothing about speed. Nothing is asserted about seconds. Most comparisons run at
night, since each starts Spark and its peers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = Path(__file__).resolve().parents[2] / "benchmarks" / "run.py"


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(*arguments: str) -> dict[str, Any]:
        file = tmp_path / "report.json"
        done = subprocess.run(
            [sys.executable, str(RUN), "--rounds", "1", "--json", str(file), *arguments],
            capture_output=True,
            text=True,
            timeout=500,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict[str, Any] = json.loads(file.read_text())
        for row in found["rows"]:
            assert row["case"] in done.stdout
        return found

    return run


@pytest.mark.needs_reference
def test_every_benchmark_imports_what_there_is():
    program = (
        "import importlib, run\n"
        "for module, _ in run.BENCHMARKS.values():\n"
        "    importlib.import_module(module)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=RUN.parent,
        env={**os.environ, "PYTHONPATH": str(RUN.parent)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.needs_reference
def test_plans_open_no_manifest_and_manifests_come_back(report):
    rows = report("plan", "manifest", "--scale", "0.001")["rows"]
    plans = [row for row in rows if row["benchmark"] == "plan"]
    assert [row["figures"]["chunks"] for row in plans] == [10**3, 10**5, 10**6]
    assert all(row["figures"]["manifest_requests"] == 0 for row in plans)
    assert all(0 < row["figures"]["requests"] <= 4 for row in plans)
    manifests = {row["case"]: row for row in rows if row["benchmark"] == "manifest"}
    for case in ("decode native", "encode native", "decode virtual", "encode virtual"):
        assert manifests[case]["figures"]["stored_bytes_per_ref"] < 40
        assert manifests[case]["versus"] == f"{case}: zstd alone"
    assert all(row["peak_mb"] > 10 for row in [*plans, manifests["decode native"]])


@pytest.mark.needs_reference
def test_reports_become_pictures_and_a_table_again(report, tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("icechunk")
    rows = report("plan", "manifest", "--scale", "0.001", "--no-memory")["rows"]
    cases = {row["case"]: row for row in rows}
    assert cases["open virtual, this library"]["versus"] == "open virtual, reference"
    assert cases["commit virtual, this library"]["ratio"] > 0
    table, pictures = tmp_path / "table.md", tmp_path / "pictures"
    table.write_text("before\n<!-- benchmarks -->\nold\n<!-- /benchmarks -->\nafter\n")
    done = subprocess.run(
        [
            *(sys.executable, str(RUN), "--from", str(tmp_path / "report.json")),
            *("--markdown", str(table), "--plots", str(pictures)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(file.name for file in pictures.iterdir()) == ["manifest.png", "plan.png"]
    for file in pictures.iterdir():
        data = file.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert len(data) > 5_000
    lines = table.read_text().splitlines()
    assert (lines[0], lines[-1], "old" in lines) == ("before", "after", False)
    assert lines[2].startswith("Runs: ")
    assert "scale 0.001" in lines[2]
    for row in rows:
        shown = [line for line in lines if f"| {row['benchmark']}: {row['case']} |" in line]
        assert len(shown) == (1 if row["goal"] else 0)


@pytest.mark.nightly
@pytest.mark.needs_reference
def test_large_repositories_are_compared_step_by_step(report):
    pytest.importorskip("icechunk")
    rows = {row["case"]: row for row in report("large", "--scale", "0.001")["rows"]}
    steps = [f"100 nodes: {step}" for step in ("open", "commit", "rebase")]
    for history in ("50 snapshots, 5 branches", "25 tags kept by an expiry"):
        steps += [
            f"{history}: {step}" for step in ("open", "ancestry", "first commit", "next commits")
        ]
    kept = "50 snapshots, 5 branches and tags"
    steps += [
        f"{kept}: {step}"
        for step in (
            "open",
            "list refs",
            "create a tag",
            "rebase",
            "create a branch and commit to it",
            "expire half",
            "expire with branches and tags",
            "collect",
        )
    ]
    assert set(rows) == {
        f"{kept}: commit and merge, this library",  # which the reference cannot
        *(f"{step}, {who}" for step in steps for who in ("this library", "reference")),
    }
    for step in steps:
        ours = rows[f"{step}, this library"]
        assert ours["versus"] == f"{step}, reference"
        assert ours["ratio"] > 0
        assert ours["peak_mb"] >= 0
        assert ours["figures"]["repo_bytes"] > 0


@pytest.mark.nightly
@pytest.mark.needs_reference
def test_scans_are_compared_in_one_run(report):
    pytest.importorskip("icechunk")
    names = ("scan", "tiny-chunks", "selective", "real-data", "collect")
    rows = report(*names, "--scale", "0.005", "--no-memory")["rows"]
    by_benchmark: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_benchmark.setdefault(row["benchmark"], []).append(row)
        assert row["wall_s"] > 0
        assert not row["versus"] or row["ratio"] > 0
    compared = {(row["case"], row["versus"]) for row in by_benchmark["scan"]}
    for layout in ("planes", "tiles", "shards"):
        literal = f"noop: {layout}"
        assert (literal, "noop: null batches in mapInArrow") in compared
        assert (literal, f"noop: {layout}, reference in mapInArrow") in compared
        assert (f"{literal}, data source", "noop: null source") in compared
    for way in ("", ", data source"):
        assert (f"noop of 2 columns: planes{way}", f"noop: planes{way}") in compared
    peers = {row["case"]: row["versus"] for row in by_benchmark["tiny-chunks"]}
    for count in (50, 500):
        for kind in (f"{count} inline", f"{count} native on S3"):
            assert peers[f"{kind}, tasks in this process"] == f"{kind}, zarr-python"
    far = "50 native at 50 ms"
    assert peers[f"{far}, tasks in this process"] == f"{far}, zarr-python"
    (real,) = (row for row in by_benchmark["real-data"] if row["goal"])
    assert real["versus"] == "A1B_north_america, xarray"
    assert real["figures"]["cells"] == 240 * 37 * 49
    # All of them left the same objects, which the benchmark itself compares.
    for row in by_benchmark["collect"][:2]:
        assert row["versus"] == "reference"
        assert row["figures"]["deleted"] >= row["figures"]["objects"] // 2
    for row in by_benchmark["selective"]:
        if row["figures"]:
            # Shards this small are read whole: fewer requests are worth more than the bytes.
            least, most = (1, 100) if "shards" in row["case"] else (1, 1)
            assert least <= row["figures"]["bytes_by_ideal"] <= most
            assert row["figures"]["chunks_ideal"] <= row["figures"]["chunks_of_array"]


@pytest.mark.nightly
@pytest.mark.needs_reference
def test_queries_are_compared_with_peers_and_options(report):
    pytest.importorskip("icechunk")
    pytest.importorskip("xarray_sql")
    rows = report("queries", "--scale", "0.01")["rows"]
    compared = {(row["case"], row["versus"]): row for row in rows}
    by_latitude = "average by latitude"
    queries = (
        *(by_latitude, "average", "average of a box of 1 %", "average of one hour"),
        *("cells above 320 K by hour", "count(*)"),
    )
    for query in queries:
        beside = compared[f"{query}, Spark", f"{query}, xarray-sql"]
        assert beside["ratio"] > 0
        assert beside["figures"]["xarray_s"] > 0
    for query in queries[2:4]:
        far = f"{query} at 50 ms"
        assert compared[f"{far}, Spark", f"{far}, xarray-sql"]["ratio"] > 0
    assert (f"{by_latitude}, Spark", f"{by_latitude}, rows in Spark") in compared
    assert (f"{by_latitude}, tasks in this process", f"{by_latitude}, xarray") in compared
    box = "rows of a box of 1 %"
    assert compared[f"{box}, df.where", f"{box}, option where"]["figures"]["cells"] > 0
    assert ("rows of one of four variables", "rows of four variables") in compared
    cases = {row["case"]: row for row in rows}
    assert cases["100 plans without our reads, beyond planning"]["goal"] == "<= 0.1 s"
    assert cases["20 plans of a read, beyond planning"]["goal"] == "<= 1.2 s"
    assert cases["count(*) of 10,382,400 cells"]["goal"] == "<= 1 s"
    (large,) = (row for row in rows if row["peak_mb"])
    assert large["case"].startswith("df.where of one of 10,000,000 chunks")
    assert 0 < large["figures"]["mb_without_the_query"] <= large["peak_mb"] + 1


@pytest.mark.nightly
@pytest.mark.needs_reference
def test_writes_are_compared_with_sinks_that_drop_the_rows(report):
    pytest.importorskip("icechunk")
    rows = report("write", "--scale", "0.01", "--no-memory")["rows"]
    compared = {row["case"]: row for row in rows if row["versus"]}
    assert compared["planned"]["versus"] == "Parquet"
    assert compared["distribution=none"]["versus"] == "sink that drops rows, no shuffle"
    assert compared["layout=chunks, 100 chunks of 1024 bytes"]["ratio"] > 0
    few, many = (row for row in rows if row["case"].startswith("one task"))
    assert many["peak_mb"] < 2 * few["peak_mb"]


@pytest.mark.nightly
@pytest.mark.needs_reference
def test_a_verification_is_compared_with_reading_manifests(report):
    pytest.importorskip("icechunk")
    rows = report("verify", "--scale", "0.01", "--no-memory")["rows"]
    assert [row["case"] for row in rows[:2]] == ["verify", "decode the manifests"]
    assert rows[0]["figures"]["refs"] == 10_000
    assert rows[0]["ratio"] > 0


@pytest.mark.nightly
@pytest.mark.needs_reference
def test_rivals_commit_near_and_far(report):
    pytest.importorskip("icechunk")
    rows = report("rival-writers", "--scale", "0.01")["rows"]
    compared = {(row["case"], row["versus"]): row for row in rows}
    for wire in ("0 ms", "20 ms"):
        ours = compared[f"{wire}, this library", f"{wire}, reference"]
        assert ours["ratio"] > 0
        assert ours["figures"]["chunks"] == ours["figures"]["commits"] == 3
        assert compared[f"{wire}, this library", f"{wire}, one writer"]["ratio"] > 0


@pytest.mark.nightly
@pytest.mark.needs_reference
def test_copies_answer_as_repositories_do(report):
    pytest.importorskip("icechunk")
    rows = {row["case"]: row for row in report("mirror", "--scale", "0.002")["rows"]}
    assert rows["first query, copy and average"]["versus"] == "average, repository"
    for question in ("average", "by latitude", "point", "box of 1 %", "join"):
        assert rows[f"{question}, copy"]["versus"] == f"{question}, repository"
    assert rows["refresh after 1 of 100 days"]["figures"]["rows"] == 22 * 22
    assert rows["refresh of one of 50 files"]["figures"]["files"] == 50


@pytest.mark.needs_reference
def test_points_fetch_what_is_ideal(report):
    pytest.importorskip("icechunk")
    rows = {row["case"]: row for row in report("points", "--scale", "0.002", "--no-memory")["rows"]}
    figures = rows["sample nearest"]["figures"]
    assert rows["sample nearest"]["versus"] == "join of cells"
    assert figures["chunk_requests"] == figures["chunks_with_points"] < figures["chunks_of_array"]
    assert figures["bytes_by_ideal"] == 1.0


@pytest.mark.nightly
def test_streams_lose_nothing(report):
    rows = report("streams", "--scale", "0.02")["rows"]
    soak = next(row for row in rows if row["case"].startswith("soak"))
    assert soak["figures"]["lost"] == soak["figures"]["twice"] == 0
    assert soak["figures"]["deaths"] >= 3
    assert soak["figures"]["rows_of_the_reader"] >= 1_000
    assert [row["versus"] for row in rows if "commits" in row["case"]][1:] == [
        "8 batches after 1 commits"
    ] * 3


@pytest.mark.nightly
@pytest.mark.needs_reference
def test_arrays_are_those_of_peers(report):
    pytest.importorskip("cubed")
    pytest.importorskip("distributed")
    found = report("rechunk", "map_blocks", "--scale", "0.01", "--no-memory")["rows"]
    rows = {row["case"]: row for row in found}
    assert rows["rechunk"]["versus"] == "dask threads"
    figures = rows["rechunk"]["figures"]
    assert figures["chunks_decoded"] == figures["chunks_of_source"] == 12
    assert figures["chunks_encoded"] == figures["chunks_of_target"] == 4
    assert 0 < figures["imports_mb"] < 1000
    assert rows["memory of a worker"]["peak_mb"] > 50
    for peer in ("dask p2p", "cubed", "rows"):
        assert rows[f"rechunk beside {peer}"]["ratio"] > 0
    assert rows["identity"]["ratio"] > 0
    plan = rows["plan of 866 GB"]["figures"]
    assert 256 << 10 < plan["bytes_per_piece"] < 16 << 20


@pytest.mark.nightly
@pytest.mark.needs_reference
def test_observation_is_compared_with_silence(report):
    pytest.importorskip("icechunk")
    rows = {row["case"]: row for row in report("observe", "--scale", "0.01")["rows"]}
    assert rows["scan: counted"]["versus"] == "scan: tasks that count nothing"
    once, twice = (f"write: expensive rows, computed {how}" for how in ("once", "twice"))
    assert rows[once]["versus"] == twice
