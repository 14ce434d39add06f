"""The reads that queries plan again are kept apart, and in bounded memory."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import icechunk_spark
from icechunk_spark.queries import reads
from icechunk_spark.queries.reads import READS, Opened, Read, Reads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def optimized(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan().toString())


def test_numbers_of_reads_and_of_opened_tables_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reads, "_MOST_READS", 5)
    monkeypatch.setattr(reads, "_MOST_OPEN", 3)
    kept = Reads()
    ids = [kept.new_id() for _ in range(9)]
    table: Any = SimpleNamespace(options=SimpleNamespace(credentials=None))
    for id in ids:
        kept.add(id, table, Opened(table))
    assert len(set(ids)) == 9
    assert len(kept) == 5
    assert len(kept._open) == 3
    assert kept.get(ids[0]) is None
    assert kept.get(ids[8]) is table


@pytest.mark.parametrize("queries", [1_000, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_many_queries_of_one_session(spark: SparkSession, cube: str, queries: int):
    frame = icechunk_spark.read(spark, cube)
    rule: Any = reads_rule(spark)
    before = len(READS), rule.watched_reads()
    alive = reads_alive()
    for number in range(queries):
        assert "where=" in optimized(frame.where(f"latitude > {number / 100}"))
        if not number % 100:
            icechunk_spark.read(spark, cube).where("latitude > 5")
    for _ in range(20):
        gc.collect()
        spark._jvm.System.gc()
        icechunk_spark.read(spark, cube)
        if len(READS) <= before[0] + 2 and rule.known_queries() < queries / 2:
            break
    assert reads_alive() <= alive + 2
    assert len(READS) <= before[0] + 2
    assert rule.watched_reads() <= before[1] + 2
    opened = [one for one in READS._open.values() if len(one.plans) > 1]
    assert opened
    assert all(len(one.plans) <= 16 for one in READS._open.values())
    assert len(READS._open) <= 32
    # A query is known as long as its plan.
    assert rule.known_queries() < queries / 2


def reads_alive() -> int:
    """Return the number of reads that this process holds, in the registry or elsewhere."""
    gc.collect()
    return sum(isinstance(one, Read) for one in gc.get_objects())


def reads_rule(spark: SparkSession) -> Any:
    from icechunk_spark.queries.installing import installed

    rule = installed(spark)
    assert rule is not None

    class Sizes:
        def watched_reads(self) -> int:
            return size(rule.jvm_rule, "watched")

        def known_queries(self) -> int:
            return size(rule.jvm_rule, "queries")

    def size(jvm_rule: Any, name: str) -> int:
        field = jvm_rule.getClass().getDeclaredField(name)
        field.setAccessible(True)
        return int(field.get(jvm_rule).size())

    return Sizes()


def test_plans_of_one_table_are_made_in_many_threads():
    table: Any = SimpleNamespace(options=SimpleNamespace(credentials=None))
    opened, errors = Opened(table), []
    barrier = threading.Barrier(4)

    def run(start: int) -> None:
        barrier.wait()
        try:
            for number in range(20_000):
                key = (start + number) % 23
                assert opened.plan(key, lambda key=key: key) == key
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(5 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(opened.plans) <= 16
