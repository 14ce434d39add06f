"""The data source that Spark sees: options in, a pinned snapshot, a reader out.

Rules of this file
------------------
1. Importing it is cheap. Spark imports it in a planner process at the first lookup of *any*
   source, so only pyspark's data source module and our options are imported at the top; Arrow and
   the dataset layer are imported by the methods that use them.
2. The snapshot is resolved once. Spark pickles the instance after `schema()`, so what `schema()`
   keeps on it is what `reader()` sees. Where the user gave a schema, Spark skips `schema()`, and
   `reader()` resolves; Spark then keeps that reader for all actions on the DataFrame.
3. Our errors pass through as they are: Spark prints a traceback, and their last line tells the
   user what to do.
4. `self.options` may hold credentials. It never enters a message or a `repr`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

from icechunk_format.errors import UnsupportedError
from icechunk_spark.options import parse_read_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class IcechunkDataSource(DataSource):
    """Icechunk repositories as Spark tables: ``format("icechunk")``.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.register(spark)  # doctest: +SKIP
    >>> spark.read.format("icechunk").load("s3://bucket/weather")  # doctest: +SKIP

    The options are listed in :data:`icechunk_spark.options.OPTIONS` and in the README.
    """

    # The id of the snapshot that `schema()` resolved; a class attribute, because Spark asks that
    # `__init__` stays as it is.
    _pinned_snapshot: str | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "icechunk"

    def schema(self) -> StructType:
        """Resolve and pin the snapshot, and return the columns of the table.

        Raises
        ------
        IcechunkError
            An option cannot be used, or what it names does not exist.
        """
        options = parse_read_options(self.options)
        # Heavy (Arrow, NumPy, the dataset layer): see rule 1.
        from icechunk_spark.planning import open_table
        from icechunk_spark.schema import spark_schema

        opened = open_table(options, snapshot=self._pinned_snapshot)
        self._pinned_snapshot = opened.snapshot
        return spark_schema(opened.table.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the pinned snapshot for the columns of `schema`.

        Raises
        ------
        IcechunkError
            An option or the schema cannot be used, or what they name does not exist.
        """
        options = parse_read_options(self.options)
        # Heavy (Arrow, NumPy, the dataset layer): see rule 1.
        from icechunk_spark.planning import make_reader

        return make_reader(options, schema, snapshot=self._pinned_snapshot)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse: this version reads only.

        Raises
        ------
        UnsupportedError
            Always.
        """
        _refuse("writing with df.write is not part of this version; it reads only")

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Refuse: there is no streaming read.

        Raises
        ------
        UnsupportedError
            Always.
        """
        _refuse("spark.readStream is not supported; use spark.read, and option asOf or snapshot")

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Refuse: there is no streaming write.

        Raises
        ------
        UnsupportedError
            Always.
        """
        _refuse("df.writeStream is not part of this version; it reads only")


def _refuse(what: str) -> NoReturn:
    raise UnsupportedError(f"format('icechunk'): {what}")
