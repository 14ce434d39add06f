"""The scripts in ``examples/`` run unchanged and print the expected results.

One of them runs as a separate program, like those of users. The others run in the process of the
tests, whose Spark session ``spark.stop()`` must not stop.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.spark.session import environment_of_a_program

pytestmark = pytest.mark.needs_reference

EXAMPLES = Path(__file__).parents[2] / "examples"

AS_A_PROGRAM = "write_audit_publish"
SHOWN = {
    "append_a_day": [
        "2024-07-02: 43,512 cells",
        "has already committed txnVersion",
        "2024-07-03 00:00:00",
        "days.png",
    ],
    "fix_a_region": ["rewrote 1,512 cells in 4 of the 16 chunks", "Gulf of Mexico", "fixed.png"],
    AS_A_PROGRAM: ["0 outside of 180 to 340 K -> published", "-> not published", "branches.png"],
    "two_writers": ["rebased on the other commit", "refused.", "writers.png"],
    "virtual_from_netcdf": [
        "45 chunks of 4 files",
        "left out: ostia-2010.nc: its first bytes",
        "added 1 file and skipped 4",
        "archives.png",
        "reads the values of the files: True",
    ],
    "mirror_a_repository": [
        "copied 43,512 cells of snapshot",
        "43,512 more cells, 0 files rewritten",
        "third run: 0 cells",
        "the first snapshot has 43,512 cells",
        "DuckDB: [(datetime.datetime(2024, 7, 1",
        "snapshots.png",
    ],
    "city_stripes": ["7,326 cities, 1,758,240 temperatures", "city_stripes.png"],
    "county_warming": ["3,109 counties, 746,160 yearly means", "North Dakota warms most: by 7.7"],
    "demo": [
        "series: 286.49 to 292.02 K, from xarray by at most",
        "largest difference between Spark and xarray",
        "map.png",
    ],
    "operations": [
        "left out: 2024-07-03T06.nc: its first bytes",
        "Take out 04 July: up to 379 K",
        "merged 04 July: 261 to 302 K",
        "0 problems; ",
        "operations.png",
    ],
    "stream_of_files": [
        "means committed: 6 files",
        "table refreshed: 6 files",
        "1,200 readings in 6 commits",
        "the table has 1,200 readings",
        "lag.png",
    ],
}
# A run of this one takes a minute and a half; the guide of operations shows its steps.
BY_NIGHT = "operations"
# Small sizes for the tests.
ARGUMENTS = {"operations": ["--states", "RI"]}


def test_an_example_as_a_program(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{AS_A_PROGRAM}.py", tmp_path],
        capture_output=True,
        text=True,
        env=environment_of_a_program(),
        cwd=tmp_path,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for text in SHOWN[AS_A_PROGRAM]:
        assert text in done.stdout, done.stdout


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if name == BY_NIGHT else [])
        for name in SHOWN
        if name != AS_A_PROGRAM
    ],
)
def test_an_example_in_a_running_session(spark, name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", str(tmp_path), *ARGUMENTS.get(name, [])])
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    finally:
        # Examples choose the settings of their session, which is that of the tests here.
        spark.conf.set("spark.sql.session.timeZone", zone)
    shown = capsys.readouterr().out
    for text in SHOWN[name]:
        assert text in shown
