"""The files in ``examples/schedules/`` run: the tasks of the DAG in order, checks, a pipeline.

Airflow itself is not among the packages of the tests: a module in its place collects the tasks of
the DAG, whose commands then run as Airflow's Bash operator runs them.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest
import yaml
from helpers.grids.written_cells import DIMS, grid
from helpers.spark.session import environment_of_a_program

from icechunk_format import Repository
from icechunk_format.options.parse import parse_read_options
from icechunk_format.options.write_request import parse_write_options
from icechunk_format.tables.writing import applications
from icechunk_format.tables.writing.in_process import write_table

SCHEDULES = Path(__file__).parents[2] / "examples" / "schedules"


class Task:
    """A task of the DAG, with the tasks that follow it."""

    made: ClassVar[list[Task]] = []

    def __init__(self, *, task_id, bash_command, **_):
        self.task_id, self.command = task_id, bash_command
        self.after: list[Task] = []
        Task.made.append(self)

    def __rshift__(self, other):
        for task in other if isinstance(other, list) else [other]:
            task.after.append(self)
        return other


class Dag:
    def __init__(self, dag_id, **options):
        self.dag_id, self.options = dag_id, options

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def dag(monkeypatch, tmp_path):
    """Parse the DAG for a repository below a folder; return its tasks in their order."""
    for name in (
        "airflow",
        "airflow.providers",
        "airflow.providers.standard",
        "airflow.timetables",
    ):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name, value in (("operators", None), ("operators.bash", Task)):
        module = ModuleType(f"airflow.providers.standard.{name}")
        module.BashOperator = value
        monkeypatch.setitem(sys.modules, module.__name__, module)
    timetables = ModuleType("airflow.timetables.interval")
    timetables.CronDataIntervalTimetable = lambda cron, timezone: (cron, timezone)
    monkeypatch.setitem(sys.modules, timetables.__name__, timetables)
    sdk = ModuleType("airflow.sdk")
    sdk.DAG = Dag
    monkeypatch.setitem(sys.modules, "airflow.sdk", sdk)
    monkeypatch.setattr(Task, "made", [])
    monkeypatch.setenv("WEATHER_REPOSITORY", str(tmp_path / "weather"))
    monkeypatch.setenv("WEATHER_TABLE", str(tmp_path / "table"))
    monkeypatch.setenv("WEATHER_SUBMIT", "spark-submit --conf spark.ui.enabled=false")
    found = runpy.run_path(str(SCHEDULES / "nightly_dag.py"))["dag"]
    assert found.options["schedule"] == ("0 3 * * *", "UTC")
    ordered: list[Task] = []
    while len(ordered) < len(Task.made):
        ordered += [
            one for one in Task.made if one not in ordered and set(one.after) <= set(ordered)
        ]
    return ordered


def run(command, tmp_path, **more):
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = environment_of_a_program(PATH=programs, **more)
    environment.pop("PYSPARK_SUBMIT_ARGS")  # spark-submit has its own
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=500,
        check=False,
    )


def test_the_dag_has_its_tasks_in_order(dag):
    assert [task.task_id for task in dag] == ["add", "copy", "fresh", "expire", "collect", "sound"]
    assert all("{{ ds }}" in task.command for task in dag if task.task_id == "add")


@pytest.mark.nightly
def test_the_tasks_of_the_dag_run_twice(dag, tmp_path):
    for attempt in range(2):
        for task in dag:
            done = run(task.command.replace("{{ ds }}", "2024-07-02"), tmp_path)
            assert done.returncode == 0, (task.task_id, done.stdout[-500:], done.stderr[-2000:])
            if task.task_id == "add":
                assert ("has already committed" in done.stdout) == (attempt == 1)
    (found,) = applications(Repository.open(str(tmp_path / "weather")), "main")
    assert (found.app_id, found.versions) == ("nightly", ((20240702, 20240702),))
    assert (tmp_path / "table" / "_delta_log").is_dir()


def check(place, *arguments):
    program = [sys.executable, SCHEDULES / "check.py", place, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr).strip()


def test_alerts_of_a_repository(tmp_path):
    place = str(tmp_path / "weather")
    write_table(place, grid(range(3), [1, 2]), DIMS)
    everything = ("--max-age", "26", "--max-snapshots", "10", "--max-gigabytes", "1", "--verify")
    assert check(place, *everything) == (0, "no problems")
    for arguments, expected in (
        (("--max-age", "0"), "stale: the newest commit of main is from"),
        (("--max-snapshots", "1"), "growth: 2 snapshots"),
        (("--max-gigabytes", "0"), "growth: 0.0 GB"),
    ):
        code, text = check(place, *arguments)
        assert code == 1
        assert text.startswith(expected)
    next((tmp_path / "weather" / "manifests").iterdir()).write_bytes(b"damaged")
    code, text = check(place, "--verify")
    assert code == 1
    assert text.startswith("damaged: ")


def test_a_pipeline_passes_options_that_the_sink_and_the_source_take():
    """Spark adds the name of the query to the options of a sink."""
    parse_write_options({"path": "r", "queryname": "warm_readings"}, mode="append")
    parse_read_options({"path": "r", "queryName": "q"}, "readStream")


@pytest.mark.nightly
@pytest.mark.newest_spark
def test_a_declarative_pipeline_follows_a_repository_into_another(tmp_path):
    source, target = tmp_path / "readings", tmp_path / "warm"
    write_table(str(source), grid(range(3), [1, 2]), DIMS)
    project = tmp_path / "pipeline"
    project.mkdir()
    flows = (SCHEDULES / "pipeline" / "flows.py").read_text()
    # The columns of the repository above.
    for ours, theirs in (
        ("time,station", "time,x"),
        ("time=24", "time=1"),
        ("t2m > 290", "t >= 0"),
    ):
        assert ours in flows
        flows = flows.replace(ours, theirs)
    (project / "flows.py").write_text(flows)
    spec = yaml.safe_load((SCHEDULES / "pipeline" / "spark-pipeline.yml").read_text())
    spec["storage"] = f"file://{tmp_path}/state"
    spec["configuration"] = {"weather.readings": str(source), "weather.warm": str(target)}
    (project / "spark-pipeline.yml").write_text(yaml.safe_dump(spec))
    command = f"spark-pipelines run --spec {project}/spark-pipeline.yml"
    for _ in range(5):
        # With this variable, the server takes a free port instead of its usual one.
        done = run(f"{command} --conf spark.ui.enabled=false", tmp_path, SPARK_TESTING="1")
        output = done.stdout + done.stderr
        # Spark gives a Python worker of a stream ten seconds to start, whatever the settings say.
        if "worker failed to connect back" not in output:
            break
    assert "warm_readings has COMPLETED" in output, output
    assert "Run is COMPLETED" in output
    (found,) = applications(Repository.open(str(target)), "main")
    assert found.versions == ((0, 0),)
