"""Batches that are staged: exactly once, whatever dies in between."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import pytest
from helpers.builder import new_place
from helpers.grids.written_cells import grid, rows_of
from helpers.raised import raises
from helpers.spark.streams import ROWS, repository_at
from pyspark import TaskContext

from icechunk_format.errors import CommitOutcomeUnknownError, InvalidInputError, StorageError
from icechunk_format.options.write import WriteOptions
from icechunk_format.options.write_request import parse_write_options
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.memory import MemoryStorage
from icechunk_format.tables.writing.in_process import write_table
from icechunk_spark.changes import batches, staged
from icechunk_spark.source import IcechunkDataSource

pytestmark = pytest.mark.each_spark


class Killed(BaseException):
    """Stands for the death of the process."""


class _Task:
    def __init__(self, query, number):
        self._held = {batches.QUERY_ID: query, "streaming.sql.batchId": str(number)}

    def getLocalProperty(self, name):
        return self._held.get(name)


def handed_over(table):
    """Return a table as Spark hands it over: in Arrow batches, or as rows by Spark 4.0."""
    if staged._TAKES_ARROW:
        return table.to_batches()
    return [tuple(row.values()) for row in table.to_pylist()]


class Sink:
    """Writes batches as Spark does: one writer for the tasks, another for the commit."""

    def __init__(self, place, monkeypatch, *, query="query-1", overwrite=False, **options):
        self.options = {"path": place, "dims": "time,x", "chunks": "time=1,x=2", **options}
        self.mode = "overwrite" if overwrite else "append"
        self.request = parse_write_options(self.options, "writeStream", mode=self.mode)
        self.patch = monkeypatch
        self.query = query

    def write(self, number, *tables, begun=None):
        task = _Task(self.query, number)
        self.patch.setattr(TaskContext, "get", classmethod(lambda cls: task))
        source = IcechunkDataSource(self.options)
        writer = source.streamWriter(ROWS, self.mode == "overwrite")
        if begun is not None:
            begun()
        messages = [writer.write(iter(handed_over(table))) for table in tables]
        source.streamWriter(ROWS, self.mode == "overwrite").commit(messages, number)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(batches, "_PAUSE_SECONDS", 0.0)


def commits_of(place, query="query-1"):
    """Return the numbers of the batches that were committed, oldest first."""
    found = [i.metadata for i in repository_at(place).ancestry()]
    return [m["txnVersion"] for m in found[::-1] if m.get("txnAppId") == query]


def staged_keys(place):
    return [found.key for found in open_storage(Location(place)).list("staging/")]


def test_a_batch_that_runs_again_is_skipped(monkeypatch):
    place = new_place()
    sink = Sink(place, monkeypatch)
    sink.write(0, grid([0], [0, 1]), grid([1], [0, 1]))
    sink.write(0, grid([0], [0, 1]), grid([1], [0, 1]))
    sink.write(1, grid([1], [0, 1], offset=5.0))
    assert commits_of(place) == [0, 1]
    assert rows_of(place).column("t").to_pylist() == [0, 1, 105, 106]
    assert staged_keys(place) == []


def test_a_batch_without_rows_commits_nothing(monkeypatch):
    place = new_place()
    sink = Sink(place, monkeypatch)
    sink.write(0, grid([0], [0, 1]))
    sink.write(1, grid([], []))
    sink.write(2)
    assert commits_of(place) == [0]
    assert staged_keys(place) == []


def test_complete_replaces(monkeypatch):
    place = new_place()
    sink = Sink(place, monkeypatch, overwrite=True)
    sink.write(0, grid([0, 1], [0, 1]))
    sink.write(1, grid([5], [0, 1]))
    assert rows_of(place).column("time").to_pylist() == [5, 5]


def test_two_queries_do_not_know_each_others_batches(monkeypatch):
    place = new_place()
    Sink(place, monkeypatch).write(0, grid([0], [0, 1]))
    Sink(place, monkeypatch, query="query-2").write(0, grid([1], [0, 1]))
    assert rows_of(place).num_rows == 4


def test_maintenance_every_few_batches(monkeypatch):
    place = new_place()
    sink = Sink(place, monkeypatch, rewriteManifestsEvery="3")
    for number in range(6):
        sink.write(number, grid([number], [0, 1]))
    assert commits_of(place) == list(range(6))
    assert rows_of(place).num_rows == 12


def test_the_group_of_a_stream_is_chosen_once(monkeypatch):
    place = new_place()
    sink = Sink(place, monkeypatch)

    def rival(group):
        options = WriteOptions(mode="append", dims=("time", "x"), group=group)
        return lambda: write_table(place, grid([7], [0, 1, 2]), options)

    # Its first commit finds a repository whose only arrays have its own columns.
    sink.write(0, grid([0], [0, 1]), begun=rival("other"))
    sink.write(1, grid([1], [0, 1]), begun=rival("another"))
    for group in ("other", "another"):
        assert rows_of(place, group=group).column("time").to_pylist() == [7, 7, 7]
    assert rows_of(place, group="/").num_rows == 4
    assert [i.metadata.get("txnGroup") for i in repository_at(place).ancestry()].count("/") == 2


@pytest.mark.parametrize("rivals", [["/other"], ["/"], ["/", "/other"]])
def test_a_stream_goes_on_in_the_group_that_it_chose(monkeypatch, rivals):
    place = new_place()
    options = WriteOptions(mode="append", dims=("time", "x"), group="/only")
    write_table(place, grid([0], [0, 1]), options)
    Sink(place, monkeypatch).write(0, grid([1], [0, 1]))
    for group in rivals:
        write_table(place, grid([7], [0, 1, 2]), replace(options, group=group))
    # As after a restart: the query knows its id alone.
    Sink(place, monkeypatch).write(1, grid([2], [0, 1]))
    assert rows_of(place, group="/only").num_rows == 6
    for group in rivals:
        assert rows_of(place, group=group).column("time").to_pylist() == [7, 7, 7]


def test_a_new_stream_beside_several_groups_is_refused(monkeypatch):
    place = new_place()
    for group in ("/one", "/two"):
        options = WriteOptions(mode="append", dims=("time", "x"), group=group)
        write_table(place, grid([0], [0, 1]), options)
    with pytest.raises(InvalidInputError, match="choose one with the option group"):
        Sink(place, monkeypatch).write(0, grid([1], [0, 1]))
    Sink(place, monkeypatch, group="/one").write(0, grid([1], [0, 1]))
    with raises(InvalidInputError, groups=("/one", "/two")):
        Sink(place, monkeypatch, query="query-2").write(0, grid([1], [0, 1]))
    assert "txnGroup" not in next(iter(repository_at(place).ancestry())).metadata


class _Rows:
    """Stands for the DataFrame of a batch."""

    def persist(self):
        pass

    unpersist = persist

    def isEmpty(self):
        return False


def test_planned_batches_stay_in_their_group_too(monkeypatch):
    written = []
    place = new_place()
    monkeypatch.setattr(batches, "_query_id", lambda batch: "query-1")

    def write(rows, request):
        written.append(request.group)
        write_table(place, grid([len(written)], [0, 1]), request)

    monkeypatch.setattr(batches, "run_planned_write", write)
    monkeypatch.setattr(batches, "cancellable", lambda rows, action: action())
    request = Sink(place, monkeypatch).request
    first = batches.PlannedBatches(request, batches.check_stream(request, ROWS))
    options = WriteOptions(mode="append", dims=("time", "x"), group="/other")
    write_table(place, grid([7], [0, 1, 2]), options)
    first(_Rows(), 0)
    restarted = batches.PlannedBatches(request, None)
    restarted(_Rows(), 1)
    assert written == ["/", "/"]


def test_options_of_a_stream():
    with pytest.raises(InvalidInputError) as caught:
        parse_write_options({"path": "/r", "txnAppId": "a", "txnVersion": "1"}, "writeStream")
    assert caught.value.facts == {"option": "txnVersion", "call": "writeStream"}


class Faults:
    """Kills the process, loses an answer or fails at one seeded request that writes."""

    def __init__(self, monkeypatch, seed):
        self.random = random.Random(seed)
        self.left = self.random.randint(0, 14)
        self.kind = self.random.choice(["before", "after", "lost", "failed"])
        for name in ("put", "put_many", "delete_many", "copy"):
            original = getattr(MemoryStorage, name)
            monkeypatch.setattr(MemoryStorage, name, self._wrapped(original))

    def _wrapped(self, original):
        def call(store, *arguments, **keywords):
            self.left -= 1
            if self.left != -1:
                return original(store, *arguments, **keywords)
            if self.kind == "before":
                raise Killed
            if self.kind == "failed":
                raise StorageError("the store is away")
            done = original(store, *arguments, **keywords)
            if self.kind == "after":
                raise Killed
            if self.kind == "lost":
                raise StorageError("the answer was lost")
            return done

        return call


@pytest.mark.parametrize("seed", range(40))
def test_killed_at_any_request(monkeypatch, seed):
    """Every batch lands once, whenever the process dies, and the last write of a cell stays."""
    place = new_place()
    rng = random.Random(seed)
    Sink(place, monkeypatch).write(0, grid([0], [0, 1]))
    for number in range(1, 4):
        table = grid([0, number], [0, 1], offset=1000.0 * number)
        with monkeypatch.context() as faulty:
            Faults(faulty, rng.random())
            with suppress(Killed, StorageError, CommitOutcomeUnknownError):
                Sink(place, faulty).write(number, table)
        Sink(place, monkeypatch).write(number, table)  # what Spark does after a restart
        found = {r["time"]: r["t"] for r in rows_of(place).to_pylist() if r["x"] == 0}
        assert commits_of(place) == list(range(number + 1))
        assert found == {n: 1000 * n + 100 * n for n in range(1, number + 1)} | {0: 1000.0 * number}
    assert staged_keys(place) == []


def test_an_outcome_in_doubt_is_settled(monkeypatch):
    place = new_place()
    sink = Sink(place, monkeypatch)
    sink.write(0, grid([0], [0, 1]))
    original = staged.UnplannedWriter.commit

    def lost(self, messages):
        original(self, messages)
        raise CommitOutcomeUnknownError("nobody knows")

    monkeypatch.setattr(staged.UnplannedWriter, "commit", lost)
    sink.write(1, grid([1], [0, 1]))
    assert commits_of(place) == [0, 1]

    def nothing(self, messages):
        raise CommitOutcomeUnknownError("nobody knows")

    monkeypatch.setattr(staged.UnplannedWriter, "commit", nothing)
    with pytest.raises(CommitOutcomeUnknownError):
        sink.write(2, grid([2], [0, 1]))


def test_rows_of_spark_4_0(monkeypatch):
    place = new_place()
    monkeypatch.setattr(staged, "_TAKES_ARROW", False)
    sink = Sink(place, monkeypatch)
    table = grid([0, 1], [0, 1])

    sink.write(0, table)
    assert rows_of(place).column("t").to_pylist() == table.column("t").to_pylist()


def test_another_query_does_not_skip_batches_of_the_same_name(monkeypatch):
    """Rows of a stream whose checkpoint was deleted are refused instead of skipped."""
    place = new_place()
    first = Sink(place, monkeypatch, txnAppId="readings")
    for number in range(2):
        first.write(number, grid([number], [1, 2]))
    first.write(1, grid([1], [1, 2]))  # the same batch again
    other = Sink(place, monkeypatch, query="query-2", txnAppId="readings")
    with raises(InvalidInputError, option="txnAppId"):
        other.write(0, grid([7], [1, 2]))
    assert sorted({row["time"] for row in rows_of(place).to_pylist()}) == [0, 1]
