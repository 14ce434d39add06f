"""Implements the table function of SQL: ``SELECT * FROM icechunk('path', tag => 'v1')``.

`icechunk_spark.register` registers it. Spark analyses it at each query, in a separate Python
process, with the options as constants; the columns follow from the options.

Rules of this file
------------------
1. The analysis pins the snapshot, so all partitions of one call read the same one.
2. A call is one task, since Spark runs a function of constants in one partition. With the table
   argument ``parts``, each partition of that table runs its share of the tasks.
3. Rows are tuples: Spark does not accept Arrow batches from functions whose columns depend on
   arguments.
4. Spark imports this module at registration, so the methods import Arrow and the layer of tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import Row
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.declare import fold_name
from icechunk_format.options.keywords import parse_arguments
from icechunk_format.options.values import listed
from icechunk_format.storage.options import SECRET_WORDS
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.profiles import is_credentials
from icechunk_spark.jobs.session_options import SessionDefaults

if TYPE_CHECKING:
    from pyspark import Accumulator

_WITH_PASSWORD: Final = re.compile(r"://[^/?#]*:[^/?#]*@")


@dataclass
class Analysis(AnalyzeResult):
    """The columns of a call, and its planned reader and tasks."""

    reader: Any = None
    tasks: list[Any] = field(default_factory=list)


class IcechunkFunction:
    """The handler of the table function; `analysis` is the result of `analyze`."""

    #: The accumulator of the session's reads, if it has one.
    counts: Accumulator[Any] | None = None

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis

    @staticmethod
    def analyze(
        path: AnalyzeArgument, parts: AnalyzeArgument | None = None, **options: AnalyzeArgument
    ) -> Analysis:
        """Return the columns of the table that the options name."""
        return analyzed(path, parts, options)

    def eval(
        self, path: str, parts: Row | None = None, **options: Any
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of all tasks, or of the tasks of one row of ``parts``."""
        from pyspark.sql.datasource import InputPartition

        first, step = (0, 1) if parts is None else _share(parts)
        for task in self._analysis.tasks[first::step]:
            for batch in self._analysis.reader.read(InputPartition(task), self.counts, "icechunk"):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def function_of(
    counts: Accumulator[Any] | None, session: SessionDefaults
) -> type[IcechunkFunction]:
    """Return the handler of a session, with its accumulator and defaults.

    Spark pickles the handler, and shows neither in plans.
    """

    class OfSession(IcechunkFunction):
        @staticmethod
        def analyze(
            path: AnalyzeArgument, parts: AnalyzeArgument | None = None, **options: AnalyzeArgument
        ) -> Analysis:
            return analyzed(path, parts, options, session)

    OfSession.counts = counts
    return OfSession


def analyzed(
    path: AnalyzeArgument,
    parts: AnalyzeArgument | None,
    options: Mapping[str, AnalyzeArgument],
    session: SessionDefaults | None = None,
) -> Analysis:
    """Return the analysis of a call with the defaults of its session."""
    # Heavy (Arrow, NumPy, the layer of tables): see rule 4.
    from icechunk_spark.reading.plan import open_read

    with errors_on_one_line(is_planner=True):
        # Only ``eval`` receives the rows of `parts`.
        if parts is not None and not parts.isTable:
            raise InvalidInputError(
                f"the second argument of the table function icechunk, parts, must be a table,"
                f" but is {parts.value!r}: give options by name, such as tag => 'v1'",
                argument="parts",
            )
        given = {name: _constant(name, argument) for name, argument in options.items()}
        place = _constant("path", path)
        _refuse_secrets(place, given)
        given = (session or SessionDefaults()).applied(given, place, "read")
        request = parse_arguments(place, given, "read")
        opened = open_read(request)
        opened.warn_of_left_out()
        reader = opened.reader(opened.schema, since=None)
    tasks = [partition.value for partition in reader.partitions()]
    return Analysis(schema=opened.schema, reader=reader, tasks=tasks)


def _refuse_secrets(path: object, options: Mapping[str, Any]) -> None:
    """Raise InvalidInputError for credentials, since Spark shows arguments in plans and logs."""
    found = [
        name
        for name, value in options.items()
        if fold_name(name).startswith(("storage", "virtual"))
        and not is_credentials(name, str(value))
        and SECRET_WORDS.search(name)
        and value != "anon"
    ]
    if _WITH_PASSWORD.search(str(path)):
        found.append("path")
    if found:
        raise InvalidInputError(
            f"the table function icechunk takes no credentials ({listed(found)}), because Spark"
            " shows the arguments in plans, its UI and the event log: give their name, credentials"
            " => 'weather', after icechunk_spark.register(spark, credentials={'weather': ...}); or"
            " use icechunk_spark.register(spark, storage_from_spark=True) or the environment",
            option=found[0],
        )


def _constant(name: str, argument: AnalyzeArgument) -> Any:
    if not argument.isConstantExpression or argument.isTable:
        raise InvalidInputError(
            f"argument {name} of the table function icechunk must be a constant, such as 'v1'",
            argument=name,
        )
    return argument.value


def _share(row: Row) -> tuple[int, int]:
    """Return the number of a partition, and the number of partitions."""
    if len(row) != 2 or not 0 <= row[0] < row[1]:
        raise InvalidInputError(
            f"rows of parts must be the number of a partition and the number of partitions, but one"
            f" is {tuple(row)}: write parts => TABLE(SELECT id, 8 FROM range(0, 8, 1, 8))",
            argument="parts",
        )
    return int(row[0]), int(row[1])
