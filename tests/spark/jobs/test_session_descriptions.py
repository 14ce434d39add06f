"""Jobs say what they do, in the UI and in the log, and leave what the user has set."""

import itertools
import logging

import pytest

import icechunk_spark
from icechunk_format.options.write_request import parse_write_options
from icechunk_format.repository import Repository
from icechunk_spark.changes.batches import PlannedBatches


def descriptions(spark, since):
    """Return the descriptions of the jobs after a number of jobs."""
    store = spark.sparkContext._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    found = []
    for number in range(jobs.size()):
        job = jobs.apply(number)
        if job.jobId() >= since and job.description().isDefined():
            found.append(job.description().get())
    return found


def jobs_so_far(spark):
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return max((jobs.apply(n).jobId() for n in range(jobs.size())), default=-1) + 1


@pytest.mark.each_spark
def test_a_write_and_maintenance_say_what_they_do(spark, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    spark.sparkContext.setJobDescription("nightly")
    since, path = jobs_so_far(spark), str(tmp_path / "r")
    try:
        frame = spark.range(20).selectExpr("id AS x", "double(id) AS v")
        icechunk_spark.write(frame, path, dims=["x"], message="twenty cells")
        icechunk_spark.read(spark, path, where="x < 3")
        icechunk_spark.maintenance.collect_garbage(spark, path, older_than="1d")
        assert spark.sparkContext.getLocalProperty("spark.job.description") == "nightly"
    finally:
        spark.sparkContext.setJobDescription(None)
    found = descriptions(spark, since)
    assert any(
        text.startswith("icechunk: ") and text.endswith(": collecting coordinates")
        for text in found
    )
    assert any(text.endswith(": writing v in 1 task") for text in found)
    assert any(text.endswith("manifests of kept snapshots") for text in found)
    assert any(text.endswith("old chunks") for text in found)
    logged = [record.getMessage() for record in caplog.records]
    [planned] = [text for text in logged if text.startswith("planned icechunk ")]
    assert planned.endswith(" where='x < 3', tasks: 1")
    committed = [text for text in logged if text.startswith("committed ")]
    assert any("twenty cells" in text for text in committed)


@pytest.mark.each_spark
def test_every_job_of_a_stream_is_described(spark, tmp_path):
    since, path = jobs_so_far(spark), str(tmp_path / "r")
    frame = spark.range(20).selectExpr("id AS x", "double(id) AS v")
    options = {"path": path, "dims": "x", "txnAppId": "rates"}
    PlannedBatches(parse_write_options(options, "writeStream", mode="append"), None)(frame, 7)
    found = descriptions(spark, since)
    assert any(text.endswith(": computing batch 7") for text in found)
    assert len(found) == jobs_so_far(spark) - since
    assert all(text.startswith("icechunk: ") for text in found)


def test_a_lost_race_is_logged_with_its_cause(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="icechunk_format")
    repository = Repository.create(str(tmp_path / "r"))
    first = repository.writable_session()
    group = b'{"zarr_format":3,"node_type":"group"}'
    first.create_group("/", group)
    first.commit("root")
    late = repository.writable_session()
    late.create_group("/late", group)
    tip, names = late._tip, iter("ab")
    advance = tip.advance

    def after_a_rival(info):
        for name in itertools.islice(names, 1):
            rival = repository.writable_session()
            rival.create_group(f"/{name}", group)
            rival.commit(f"rival {name}")
        return advance(info)

    tip.advance = after_a_rival
    done = late.commit("late")
    assert done.rebased == 2
    lines = [record.getMessage() for record in caplog.records]
    lost = [line for line in lines if " lost a race: " in line]
    assert [line.startswith(f"attempt {n} to") for n, line in enumerate(lost, 1)] == [True, True]
    rebased = [
        line for line in lines if line.startswith("rebased on 1 newer commit of other writers ")
    ]
    assert [line.rpartition(": ")[2] for line in rebased] == ["rival a", "rival b"]
    assert lines[-1].startswith(f"committed {done.snapshot_id} to branch main of ")
    assert lines[-1].endswith("late (2 lost races before)")
