"""Implements ``icechunk_spark.combine_summaries``."""

from __future__ import annotations

from functools import reduce
from operator import add

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from icechunk_format.errors import InvalidInputError

_PARTS = ("count", "min", "max", "mean", "m2")


def combine_summaries(df: DataFrame, *by: str | Column) -> DataFrame:
    """Combine rows of ``layout="summary"`` into count, mean, std, min and max.

    Blocks may have any size: means are weighted by counts, and squared deviations are converted to
    deviations from the common mean.

    Parameters
    ----------
    df
        Rows of ``layout="summary"``, selected or joined.
    by
        Columns to group by, such as ``"time_first"`` or ``F.year("time_first").alias("year")``.
        Without columns, all rows are combined.

    Returns
    -------
    DataFrame
        The columns of `by`, and for each variable ``..._count``, ``..._mean``, ``..._std`` (of the
        population, DOUBLE), ``..._min`` and ``..._max``.

    Raises
    ------
    InvalidInputError
        `df` does not have the columns of a summary.

    Examples
    --------
    >>> import icechunk_spark
    >>> blocks = icechunk_spark.read(  # doctest: +SKIP
    ...     spark, "s3://bucket/weather", layout="summary", block={"time": 1}
    ... )
    >>> icechunk_spark.combine_summaries(blocks, "time_first").show()  # doctest: +SKIP
    """
    names = [name.removesuffix("_m2") for name in df.columns if name.endswith("_m2")]
    names = [name for name in names if {f"{name}_{part}" for part in _PARTS} <= set(df.columns)]
    if not names:
        raise InvalidInputError(
            f"df has the columns {', '.join(df.columns)}, which are not those of a summary: read"
            " with layout='summary'",
            columns=tuple(df.columns),
        )
    for name in by:
        if isinstance(name, str) and name not in df.columns and f"{name}_first" in df.columns:
            raise InvalidInputError(
                f"a summary has no column {name!r}; group by the first or last label of each block,"
                f" {name}_first or {name}_last",
                column=name,
            )
    columns: list[Column] = []
    for name in names:
        count, mean, squares = (_column(f"{name}_{part}") for part in ("count", "mean", "m2"))
        # Pairs are merged one by one, since sums of squares lose precision by cancellation.
        parts = F.collect_list(F.struct(count.alias("n"), mean.alias("mean"), squares.alias("m2")))
        filled = F.filter(parts, lambda part: part["n"] > 0)
        zero = F.struct(
            F.lit(0).cast("bigint").alias("n"),
            F.lit(0.0).cast("double").alias("mean"),
            F.lit(0.0).cast("double").alias("m2"),
        )
        total = F.aggregate(filled, zero, _merged)
        n = total["n"]
        columns += [
            n.alias(f"{name}_count"),
            F.when(n > 0, total["mean"]).alias(f"{name}_mean"),
            F.when(n > 0, F.sqrt(total["m2"] / n)).alias(f"{name}_std"),
            F.min(_column(f"{name}_min")).alias(f"{name}_min"),
            F.max(_column(f"{name}_max")).alias(f"{name}_max"),
        ]
    return df.groupBy(*by).agg(*columns)


def _merged(total: Column, part: Column) -> Column:
    """Return the count, mean and squared deviations of two disjoint sets (Chan et al., 1979)."""
    n = total["n"] + part["n"]
    apart = part["mean"] - total["mean"]
    mean = total["mean"] + apart * part["n"] / n
    squares = reduce(add, (total["m2"], part["m2"], apart * apart * total["n"] * part["n"] / n))
    return F.struct(
        n.cast("bigint").alias("n"),
        mean.cast("double").alias("mean"),
        squares.cast("double").alias("m2"),
    )


def _column(name: str) -> Column:
    return F.col(f"`{name.replace('`', '``')}`")
