"""Implements ``icechunk_spark.attach`` and ``icechunk_spark.tables``: names instead of paths.

Rules of this file
------------------
1. All tables of a catalog are opened before a view is created: a catalog with a wrong table
   attaches none.
2. The names belong to one session, like its temporary views.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    DayTimeIntervalType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from icechunk_format.errors import IcechunkError, InvalidInputError
from icechunk_format.options.arguments import check_argument, checked_call
from icechunk_format.options.declare import fold_name
from icechunk_format.tables import checked_entries, read_catalog
from icechunk_format.tables.catalog import Entry
from icechunk_format.tables.catalog.entries import of_problems
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.session import session_key
from icechunk_spark.jobs.session_options import session_read
from icechunk_spark.schema import quoted_name
from icechunk_spark.sql.view import view

_COLUMNS: Final = StructType(
    [
        StructField("name", StringType()),
        StructField("path", StringType()),
        StructField("branch", StringType()),
        StructField("tag", StringType()),
        StructField("snapshot_id", StringType()),
        StructField("committed_at", TimestampType()),
        StructField("age", DayTimeIntervalType()),
        StructField("rows", LongType()),
        StructField("comment", StringType()),
        StructField("problem", StringType()),
    ]
)
# The entries of attached views by session and name of view.
_attached: Final[dict[str, dict[str, Entry]]] = {}


@checked_call("read", "spark", "prefix", "only")
def attach(
    spark: SparkSession,
    catalog: str | Mapping[str, Any],
    *,
    prefix: str = "",
    only: Sequence[str] | None = None,
    **options: Any,
) -> list[str]:
    """Create a temporary view for each table of a catalog.

    The views are those of `icechunk_spark.view`: each query reads the newest snapshot. All tables
    are opened first; if one cannot be used, no view is created. Views of these names are replaced.

    Parameters
    ----------
    spark
        A classic or Spark Connect session.
    catalog
        Path or URL of a file that ends in ``.yaml``, ``.yml`` or ``.json``, a dictionary of the
        same form, or a folder of repositories. The form is ``{"tables": {"weather": {"path":
        "s3://bucket/weather", "variables": ["t2m"], "credentials": "provider"}}}``: an entry has
        ``path``, any option of reading, ``comment``, and ``tags``, a list of tags (True for all)
        that get views such as ``weather@v1``.
    prefix
        The beginning of the names of all views. Temporary views have no schema, so ``"met_"``
        rather than ``"met."``.
    only
        Names of the tables to attach, by default all.
    **options
        Options of reading for all tables, such as ``as_of="2024-07-01"``, which does not apply to
        entries with a tag or snapshot. Options of an entry take precedence. ``storage.*`` and
        ``credentials`` are for the catalog, and for tables with a path relative to it.

    Returns
    -------
    list of str
        The names of the views, in the order of the catalog.

    Raises
    ------
    InvalidInputError
        The catalog or an entry has an unknown key, contains a credential, two entries have one
        name, or a table cannot be used. The message names all such entries.
    NotFoundError
        The catalog does not exist.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.attach(spark, "s3://company/catalog.yaml")  # doctest: +SKIP
    ['weather', 'ocean']
    >>> spark.sql("SELECT time, avg(t2m) FROM weather GROUP BY time")  # doctest: +SKIP
    """
    if not isinstance(catalog, Mapping):
        check_argument("catalog", catalog, str, "'s3://company/catalog.yaml'")
    parse = partial(session_read, spark)
    label = "the catalog" if isinstance(catalog, Mapping) else f"the catalog {catalog!r}"
    with errors_on_one_line():
        entries = read_catalog(catalog, _at_any_time(options), parse)
        entries = [_at(one, options) for one in _chosen(entries, only, label)]
        checked = checked_entries(entries, parse)
    problems = [f"{facts.name!r}: {facts.problem}" for _, facts in checked if facts.problem]
    if problems:
        raise of_problems(label, problems)
    known = _attached.setdefault(session_key(spark), {})
    for entry, _ in checked:
        name = f"{prefix}{entry.name}"
        try:
            view(spark, name, entry.path, **entry.options)
        except IcechunkError as error:
            raise of_problems(label, [f"{entry.name!r}: {error.message}"]) from error
        known[name] = entry
    return [f"{prefix}{entry.name}" for entry, _ in checked]


def tables(spark: SparkSession) -> DataFrame:
    """Return the views that `attach` created in a session, with their current state.

    Parameters
    ----------
    spark
        A classic or Spark Connect session.

    Returns
    -------
    DataFrame
        A row for each view, by name: ``name``, ``path``, ``branch``, ``tag``, ``snapshot_id`` (the
        snapshot that a query reads now), ``committed_at``, ``age`` (the time since then), ``rows``
        (NULL if they would have to be counted), ``comment``, and ``problem`` (NULL, or the reason
        for which the table cannot be read now).

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.tables(spark).where("age > INTERVAL 1 DAY").show()  # doctest: +SKIP
    """
    check_argument("spark", spark, SparkSession)
    known = _attached.get(session_key(spark), {})
    names = [name for name in sorted(known) if spark.catalog.tableExists(quoted_name(name))]
    entries = [known[name] for name in names]
    found = checked_entries([_without_tags(one) for one in entries], partial(session_read, spark))
    now = datetime.now(UTC)
    rows = [
        (
            name,
            *(facts.path, facts.branch, facts.tag, facts.snapshot_id, facts.committed_at),
            *(facts.age(now), facts.rows, facts.comment, facts.problem),
        )
        for name, (_, facts) in zip(names, found, strict=True)
    ]
    return spark.createDataFrame(rows, _COLUMNS)


def _without_tags(entry: Entry) -> Entry:
    return replace(entry, tags=())


def _chosen(entries: list[Entry], only: Sequence[str] | None, label: str) -> list[Entry]:
    if only is None:
        return entries
    by_name = {entry.name: entry for entry in entries}
    missing = [name for name in only if name not in by_name]
    if missing:
        raise InvalidInputError(
            f"{label} has no table {missing[0]!r}: it has {', '.join(sorted(by_name))}",
            option="only",
        )
    return [by_name[name] for name in only]


def _is_time(name: str) -> bool:
    """Return True if an option selects a snapshot by a timestamp."""
    return fold_name(name) in ("asof", "asoftimestamp", "timestampasof")


def _at_any_time(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if not _is_time(name)}


def _at(entry: Entry, options: Mapping[str, Any]) -> Entry:
    """Return an entry with the option of a time, unless it has a tag or snapshot."""
    if entry.is_pinned:
        return entry
    return entry.with_options({name: v for name, v in options.items() if _is_time(name)})
