"""Serves the rule of Spark's optimizer: plans reads again, and returns their plans.

The JVM calls `Planner` in the middle of a query, in the Python thread that waits for the query, or
in a thread of its own for streams.

Rules of this file
------------------
1. No error leaves this module. A read that cannot be planned again stays as it is; the plan of a
   view that cannot be planned raises the error in its task. An interruption (Ctrl-C) is raised
   after the answer, since the JVM would wait for the answer forever.
2. Conditions may contain secrets, so only DEBUG lines show them.
"""

from __future__ import annotations

import _thread
import json
import logging
import re
import threading
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.errors import IcechunkError
from icechunk_spark.queries.frames import Failing, placeholder
from icechunk_spark.queries.reads import READS, Opened, Read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from icechunk_spark.queries.replanning import QueriedRead

_log = logging.getLogger("icechunk_spark.queries")
# By then, the thread waits for the query's rows again.
_SECONDS_TO_ANSWER: Final = 0.2
# Queries of a view that may be planned at the same time.
_MOST_QUERIES: Final = 64


class Planner:
    """Implements ``java.util.function.Function``: from a request in JSON to a logical plan."""

    def __init__(self, token: str) -> None:
        self._columns = re.compile(rf"`?{re.escape(token)}(\d+)`?")
        self._has_warned = False

    def apply(self, request: str) -> Any:
        """Return the logical plan of a part of a read, or None."""
        try:
            wanted = json.loads(request)
            found = self._answer(wanted)
            if found is None:
                return None
            plans = found._jdf.queryExecution()
            # The rule runs after Spark replaced functions such as nullif.
            return plans.optimizedPlan() if wanted["kind"] == "aggregate" else plans.analyzed()
        except KeyboardInterrupt:  # rule 1
            again = threading.Timer(_SECONDS_TO_ANSWER, _thread.interrupt_main)
            again.daemon = True
            again.start()
            return None
        except Exception as error:  # rule 1
            _log.debug("a read was not planned again", exc_info=True)
            if not self._has_warned and not isinstance(error, IcechunkError):
                self._has_warned = True
                _log.warning("a read was not planned again for a query: %s", type(error).__name__)
            return None

    def _answer(self, request: dict[str, Any]) -> DataFrame | None:
        # Heavy (Arrow, NumPy, the layer of tables).
        from icechunk_spark.queries.aggregates import AggregateColumn, replan_aggregate
        from icechunk_spark.queries.counts import replan_count
        from icechunk_spark.queries.replanning import Need, log_left, replanned

        read = READS.get(request["id"])
        if read is None:
            return None
        try:
            queried = _queried(read, request)
        except IcechunkError as error:
            return failed(read, error) if read.is_fresh else None
        names = read.columns.names
        conjuncts = tuple(self._named(sql, names) for sql in request.get("conjuncts", ()))
        if request["kind"] == "aggregate":
            from pyspark.sql.types import _parse_datatype_json_string

            groups = [self._named(sql, names) for sql in request["groups"]]
            aggregates = [
                AggregateColumn(
                    sql=self._named(one["sql"], names),
                    type=_parse_datatype_json_string(one["type"]),
                )
                for one in request["aggregates"]
            ]
            found = replan_count(queried, conjuncts, groups, aggregates)
            return found or replan_aggregate(queried, conjuncts, groups, aggregates)
        log_left(
            read.name, [(what, "it cannot be written as SQL") for what in request.get("left", ())]
        )
        whole = range(len(names))
        need = Need(
            conjuncts=conjuncts,
            columns=tuple(request.get("columns", whole)),
            limit=request["limit"] if request.get("limit", -1) >= 0 else None,
            is_complete=request.get("complete", True),
        )
        try:
            return replanned(queried, need)
        except IcechunkError as error:
            if read.is_fresh:
                return failed(read, error)
            raise

    def _named(self, sql: str, names: list[str]) -> str:
        """Replace the rule's words for columns by their quoted names."""

        def name(match: re.Match[str]) -> str:
            return "`" + names[int(match[1])].replace("`", "``") + "`"

        return self._columns.sub(name, sql)

    class Java:
        """Declaration of the interface, for py4j."""

        implements: Final = ["java.util.function.Function"]


def _queried(read: Read, request: dict[str, Any]) -> QueriedRead:
    from icechunk_spark.queries.replanning import QueriedRead

    id = request["id"]
    if read.is_fresh:
        opened = _newest(read, id, request["query"], request["zone"])
    else:
        opened = READS.opened(id, lambda: _open(read, read.snapshot, read.time_zone))
        if opened.has_old_credentials:
            opened = _open(read, read.snapshot, read.time_zone)
            READS.keep_open(id, opened)
    return QueriedRead(
        read=read, opened=opened, time_zone=request["zone"], ansi=bool(request["ansi"])
    )


def _open(read: Read, snapshot: str, zone: str | None) -> Opened:
    from icechunk_spark.reading.plan import open_read

    return Opened(open_read(read.options, snapshot, zone))


def _newest(read: Read, id: str, query: int, zone: str) -> Opened:
    """Return the table of a view at the snapshot that a query reads."""
    from icechunk_spark.reading.plan import resolve_read

    with read.lock:
        known = read.newest.get(query)
        if known is None:
            try:
                snapshot = resolve_read(read.options)
                last = READS.opened(id, lambda: _open(read, snapshot, zone))
                if last.table.snapshot != snapshot or last.has_old_credentials:
                    last = _open(read, snapshot, zone)
                    READS.keep_open(id, last)
                known = last
                check_columns(read, known)
            except IcechunkError as error:
                known = error
            read.newest[query] = known
            while len(read.newest) > _MOST_QUERIES:
                read.newest.popitem(last=False)
    if isinstance(known, IcechunkError):
        raise known
    return known


def check_columns(read: Read, opened: Opened) -> None:
    """Raise InvalidInputError if a column of a view no longer exists or has another type."""
    from icechunk_spark.schema import changed_column

    error = changed_column(read.columns, opened.table.schema)
    if error is not None:
        raise error


def failed(read: Read, error: IcechunkError) -> DataFrame:
    """Return the DataFrame of a view that cannot be read now."""
    return placeholder(read.spark, Failing(error, read.name), read.columns, 0)
