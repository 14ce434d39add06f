"""Implements ``icechunk_spark.read``, and ``spark.read`` of a registered classic session.

The read is planned here. Spark receives a table of task numbers, and `mapInArrow` turns each number
into the rows of its task. Spark copies and counts the rows of a Python data source again, but not
those of `mapInArrow`, so a full scan takes little more than half of the time.

Rules of this file
------------------
1. Options, columns, types and pinning are those of the data source, so that users can switch
   between both.
2. `MappedLoad` passes invalid calls on to Spark.
3. The import is cheap, because `icechunk_spark` imports this module: the first read imports Arrow
   and the layer of tables.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from icechunk_format.errors import InvalidInputError
from icechunk_format.names import shown
from icechunk_format.options.arguments import checked_call
from icechunk_format.options.keywords import (
    Names,
    Selection,
    Sizes,
    option_strings,
    own_options,
    path_string,
)
from icechunk_format.options.parse import parse_read_options
from icechunk_format.options.read import ReadRequest
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.session import session_time_zone
from icechunk_spark.jobs.session_options import (
    NotedOptions,
    session_read,
    with_session_options,
)


@checked_call("read", "spark", "schema")
def read(
    spark: SparkSession,
    path: str,
    *,
    schema: StructType | str | None = None,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    as_of: datetime | str | None = None,
    storage_client: Literal["auto", "obstore", "fsspec"] | None = None,
    credentials: str | None = None,
    virtual_authorize: Names | None = None,
    virtual_credentials: str | None = None,
    layout: Literal["cells", "chunks", "refs", "summary"] | None = None,
    group: str | None = None,
    variables: Names | None = None,
    coords: Names | None = None,
    decode_cf: bool | None = None,
    missing_chunks: Literal["fill", "skip"] | None = None,
    timestamp_type: Literal["ntz", "utc"] | None = None,
    decoded: bool | None = None,
    block: Sizes | None = None,
    where: str | None = None,
    sel: Selection | None = None,
    sel_method: Literal["exact", "nearest"] | None = None,
    isel: Selection | None = None,
    rows_per_partition: int | None = None,
    read_ahead_bytes: int | str | None = None,
    table: str | None = None,
    from_: str | None = None,
    to: str | None = None,
    changes_since: str | None = None,
    changes_by: Literal["version", "snapshot"] | None = None,
    change_columns: bool | None = None,
    on_history_change: Literal["fail", "restart"] | None = None,
    **options: Any,
) -> DataFrame:
    """Read an Icechunk repository as a DataFrame.

    ``spark.read.format("icechunk")`` does the same in registered classic sessions. Rows are
    transferred by `mapInArrow`, so a full scan takes little more than half of the time of a Python
    data source. Spark receives an estimate of the table's size, and invalid options raise an error
    at once. This process plans the read, and therefore needs access to the storage, also with
    Connect.

    Parameters
    ----------
    spark
        A classic or Spark Connect session; registration is not required.
    path
        Root of the repository, or ``path#name`` for a metadata table.
    schema
        The columns to read, as for ``spark.read.schema``: some columns of the table, in any order.
        Only these are fetched, decoded and sent. By default, all columns are read.
    **options
        The options of the page "Options" of the manual, which ``help()`` lists.
        Settings of the repository's storage, such as ``storage_region="us-west-2"``, settings of
        the storage of virtual chunks (``virtual_storage_region``), and the options above in other
        spellings (``asOf``). Values may be Python objects: ``variables=["t2m"]``,
        ``sel={"latitude": slice(35, 45)}``. None leaves an option unset.

    Returns
    -------
    DataFrame
        The table, pinned to the snapshot that the options resolve to in this call.

    Raises
    ------
    IcechunkError
        An option or the schema cannot be used, or an object that they name does not exist.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.read(  # doctest: +SKIP
    ...     spark, "s3://bucket/weather", tag="v1", sel={"latitude": slice(35, 45)}
    ... )
    """
    parsed = session_read(spark, path, own_options("read", locals()))
    return _mapped(spark, parsed, None if schema is None else columns_of(schema))


class MappedLoad(NotedOptions):
    """Mixin for Spark's classic `DataFrameReader` that reads icechunk through `mapInArrow`."""

    _spark: SparkSession
    _icechunk_schema: StructType | str | None = None

    def schema(self, schema: StructType | str) -> Any:
        """Pass the schema to Spark, and record it unless Spark refuses it."""
        reader = super().schema(schema)  # type: ignore[misc]
        self._icechunk_schema = schema
        return reader

    def load(
        self,
        path: Any = None,
        format: str | None = None,
        schema: StructType | str | None = None,
        **options: Any,
    ) -> DataFrame:
        """Load a table: by `mapInArrow` for icechunk, by Spark's reader for other formats."""
        if format is not None:
            self.format(format)
        if schema is not None:
            self.schema(schema)
        self.options(**options)
        # Spark refuses a path that is set twice.
        is_given_twice = path is not None and "path" in map(str.lower, self._icechunk_options)
        if self._is_ours() and not is_given_twice:
            given = with_session_options(self._spark, self._icechunk_options, path)
            parsed = parse_read_options(option_strings({**given, **_named(path)}))
            columns = self._icechunk_schema
            return _mapped(self._spark, parsed, None if columns is None else columns_of(columns))
        loaded: DataFrame = super().load(path)  # type: ignore[misc]
        return loaded


def _named(path: Any) -> dict[str, str]:
    if path is None:
        return {}
    if isinstance(path, list | tuple):
        return {"paths": json.dumps([path_string(one) for one in path])}
    return {"path": path_string(path)}


def _mapped(spark: SparkSession, options: ReadRequest, columns: StructType | None) -> DataFrame:
    # Heavy (Arrow, NumPy, the layer of tables): see rule 3.
    from icechunk_spark.queries.planning import planned_read

    with errors_on_one_line():
        time_zone = None if options.where is None else session_time_zone(spark)
        return planned_read(spark, options, columns, time_zone)


def columns_of(schema: StructType | str) -> StructType:
    """Return columns that a StructType or a string specifies."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    found: Any = schema
    if isinstance(schema, str):
        try:
            found = StructType.fromDDL(schema)
        except Py4JError:  # such as of half a surrogate pair
            found = None
    if not isinstance(found, StructType):
        raise InvalidInputError(
            f"schema={shown(schema)} is not a list of columns and types, such as 'time"
            " timestamp_ntz, t2m float'",
            option="schema",
        )
    return found
