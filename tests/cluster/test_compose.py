"""The compose file is valid, pinned and closed to the network, and its services run as processes.

There may be no Docker engine where this runs, so images are not built here. The file is checked
against the Compose schema, its references are followed, and the same commands, environments and
health checks are then run as processes, with an S3 store, a master and two workers.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
VARIABLES = {"AWS_ACCESS_KEY_ID": "cluster-test", "AWS_SECRET_ACCESS_KEY": "canary-cluster-7d21"}
PINNED = re.compile(r"^[\w./-]+:[\w.-]*\d[\w.-]*@sha256:[0-9a-f]{64}$")

spec = importlib.util.spec_from_file_location("as_processes", ROOT / "deploy" / "as_processes.py")
as_processes = importlib.util.module_from_spec(spec)
sys.modules["as_processes"] = as_processes
spec.loader.exec_module(as_processes)


@pytest.fixture(scope="module")
def services():
    return as_processes.load()


def test_the_file_keeps_the_compose_schema():
    command = [sys.executable, "-m", "check_jsonschema"]
    done = subprocess.run(
        [*command, "--builtin-schema", "vendor.compose-spec", str(FILE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_services_wait_only_for_services_that_say_when_they_are_healthy(services):
    assert set(services) == {"s3", "spark-master", "spark-worker", *as_processes.DRIVERS}
    assert services["operations"]["depends_on"] == {
        "driver": {"condition": "service_completed_successfully"}
    }
    for name, service in services.items():
        if name == "operations":
            continue
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] == "service_healthy"
            assert "healthcheck" in services[other], (name, other)
    assert set(services["driver"]["depends_on"]) == {"s3", "spark-master", "spark-worker"}
    assert services["spark-worker"]["deploy"]["replicas"] == 2
    # What is scaled cannot have a port of the host.
    assert "ports" not in services["spark-worker"]


def test_images_are_pinned_and_built_of_files_that_are_there(services):
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for service in services.values():
        if "build" not in service:
            assert PINNED.match(service["image"]), service["image"]
            continue
        dockerfile = (ROOT / service["build"]["dockerfile"]).read_text()
        bases = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
        assert bases
        assert all(PINNED.match(base) for base in bases)
        assert "USER spark" in dockerfile
        for sources in re.findall(r"^COPY (.*) \S+$", dockerfile, re.MULTILINE):
            for source in sources.split():
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored, source
    pinned = re.search(r'"pyspark\[connect\]==([\d.]+)"', (ROOT / "Makefile").read_text())
    assert f'"pyspark=={pinned[1]}"' in (ROOT / "deploy" / "Dockerfile").read_text()


def test_ports_are_exposed_once_and_only_to_this_machine(services):
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published)
    assert len(published) == len(set(published))
    for name, service in services.items():
        text = " ".join(service["command"])
        for port in service.get("expose", []):
            assert port in text, (name, port)
        for port in service.get("ports", []):
            assert port.rpartition(":")[2] in service["expose"]


def test_credentials_come_from_the_environment_alone(services):
    for service in services.values():
        assert service["environment"]["AWS_SECRET_ACCESS_KEY"].startswith(
            "${AWS_SECRET_ACCESS_KEY:?"
        )
        assert service["environment"]["AWS_ACCESS_KEY_ID"].startswith("${AWS_ACCESS_KEY_ID:?")
    with pytest.raises(ValueError, match="AWS_ACCESS_KEY_ID is missing: choose a name"):
        as_processes.interpolate(services["s3"]["environment"]["AWS_ACCESS_KEY_ID"], {})


def test_a_slow_machine_has_time_to_start_workers(services):
    for name in ("spark-worker", *as_processes.DRIVERS):
        environment = services[name]["environment"]
        settings = dict(re.findall(r"--conf (\S+)=(\S+)", environment["PYSPARK_SUBMIT_ARGS"]))
        assert environment["PYSPARK_SUBMIT_ARGS"].endswith(" pyspark-shell")
        # The two ends of one connection.
        limit = settings["spark.python.authenticate.socketTimeout"]
        assert limit == f"{environment['SPARK_AUTH_SOCKET_TIMEOUT']}s" == "600s"
        assert settings["spark.network.timeout"] == "600s"
        assert int(settings["spark.task.maxFailures"]) > 4


def test_lines_report_what_is_waited_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(as_processes, "SECONDS_BETWEEN_LINES", 0)
    count = tmp_path / "count"
    instance = as_processes.Instance(
        service="slow",
        command=["sleep", "600"],
        environment=dict(os.environ),
        ports={},
        health=["sh", "-c", f"echo >> {count}; test $(wc -l < {count}) -ge 3"],
        interval=0.01,
        retries=5,
        log=tmp_path / "log",
    )
    instance.start()
    try:
        instance.wait_until_healthy()
        lines = capsys.readouterr().out.splitlines()
        assert [line.partition(" (")[0] for line in lines] == ["waiting for slow"] * 2
        instance.health = ["false"]
        with pytest.raises(RuntimeError, match="service slow did not become healthy"):
            instance.wait_until_healthy()
    finally:
        instance.stop()


def test_a_dependency_that_nobody_can_start_is_refused(tmp_path):
    file = tmp_path / "circle.yml"
    file.write_text(
        "services:\n"
        "  a: {command: [x], depends_on: {b: {condition: service_healthy}}}\n"
        "  b: {command: [x], depends_on: {a: {condition: service_healthy}}}\n"
    )
    with pytest.raises(ValueError, match="wait for each other"):
        as_processes.topology(tmp_path, path=file)
    file.write_text("services:\n  a: {command: [x], privileged: true}\n")
    with pytest.raises(ValueError, match="privileged"):
        as_processes.load(file)


DRIVER = """
import sys
from pyspark.sql import SparkSession, functions as F
import icechunk_spark

spark = (
    SparkSession.builder.master(sys.argv[1])
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "512m")
    .config("spark.executor.memory", "512m")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
icechunk_spark.register(spark)
path = sys.argv[2]
frame = spark.range(40).selectExpr("id div 4 AS x", "id % 4 AS y", "cast(id AS float) AS v")
done = icechunk_spark.write(frame, path, dims=["x", "y"], chunks={"x": 2})
read = spark.read.format("icechunk").load(path, rowsPerPartition=8)
print("answer", done.rows, done.chunks, read.agg(F.count("*"), F.sum("v")).first()[:], flush=True)
spark.stop()
"""


@pytest.mark.nightly
def test_the_same_topology_runs_as_processes(tmp_path):
    planned = as_processes.topology(tmp_path, variables=VARIABLES)
    demo = planned.instances["driver"][0].command
    assert Path(demo[1]).name == "demo.py"
    assert demo[demo.index("--master") + 1] == f"spark://{planned.address('spark-master', '7077')}"
    assert demo[-1] == str(tmp_path / "output")
    week = planned.one("operations").command
    assert Path(week[1]).name == "operations.py"
    assert week[week.index("--master") + 1] == demo[demo.index("--master") + 1]
    with as_processes.running(planned, without=as_processes.DRIVERS):
        driver = planned.instances["driver"][0]
        master = demo[demo.index("--master") + 1]
        driver.command = [sys.executable, "-c", DRIVER, master, "s3://demo/short"]
        driver.start()
        try:
            assert driver.process.wait(timeout=420) == 0, driver.log.read_text()[-3000:]
        finally:
            driver.stop()
    answer = [line for line in driver.log.read_text().splitlines() if line.startswith("answer")]
    assert answer == ["answer 40 5 (40, 780.0)"]
    # Nobody writes the secret down: not the store, not Spark's daemons, not the driver.
    for log in (*tmp_path.glob("*.log"), *tmp_path.rglob("work/**/std*")):
        assert VARIABLES["AWS_SECRET_ACCESS_KEY"] not in log.read_text(errors="replace"), log
    assert all(
        instance.process is None or instance.process.poll() is not None
        for instances in planned.instances.values()
        for instance in instances
    )
