"""Implements ``icechunk_spark.combine_summaries``."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_spark.schema import quoted, quoted_name

_PARTS = ("count", "min", "max", "mean", "m2")


def combine_summaries(df: DataFrame, *by: str | Column, weights: str | None = None) -> DataFrame:
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
    weights
        None: all cells of a block count alike in its row. ``icechunk_spark.reduce`` computes means
        with weights.

    Returns
    -------
    DataFrame
        The columns of `by`, and for each variable ``..._count``, ``..._mean``, ``..._std`` (of the
        population, DOUBLE), ``..._min`` and ``..._max``.

    Raises
    ------
    InvalidInputError
        `df` does not have the columns of a summary.
    UnsupportedError
        Weights are given.

    Examples
    --------
    >>> import icechunk_spark
    >>> blocks = icechunk_spark.read(  # doctest: +SKIP
    ...     spark, "s3://bucket/weather", layout="summary", block={"time": 1}
    ... )
    >>> icechunk_spark.combine_summaries(blocks, "time_first").show()  # doctest: +SKIP
    """
    names = [name.removesuffix("_m2") for name in df.columns if name.endswith("_m2")]
    if weights is not None:
        example = names[0] if names else "t2m"
        raise UnsupportedError(
            f"combine_summaries has no weights ({weights!r} was given): a row of a summary has one"
            " mean of all cells of a block, which count alike; compute the mean from the cells by"
            f" icechunk_spark.reduce(spark, path, {{{example!r}: 'mean'}}, over=...,"
            f" weights={weights!r})",
            option="weights",
        )
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
        parts = [quoted_name(f"{name}_{part}") for part in ("count", "mean", "m2")]

        def of_moments(finish: str, parts: list[str] = parts) -> Column:
            return F.expr(merged_moments(*parts, finish=finish))

        columns += [
            F.coalesce(F.sum(F.col(parts[0])), F.lit(0)).cast("bigint").alias(f"{name}_count"),
            of_moments("CASE WHEN t.n > 0 THEN t.mean END").alias(f"{name}_mean"),
            of_moments("CASE WHEN t.n > 0 THEN sqrt(t.m2 / t.n) END").alias(f"{name}_std"),
            F.min(quoted(f"{name}_min")).alias(f"{name}_min"),
            F.max(quoted(f"{name}_max")).alias(f"{name}_max"),
        ]
    return df.groupBy(*by).agg(*columns)


def merged_moments(count: str, mean: str, m2: str, *, finish: str) -> str:
    """Return SQL that merges columns of counts, means and squared deviations of disjoint sets.

    ``finish`` is an expression of the merged struct ``t``, with the fields ``n``, ``mean`` and
    ``m2``. Pairs are merged one by one (Chan et al., 1979), since sums of squares lose precision by
    cancellation.
    """
    part = f"named_struct('n', {count}, 'mean', {mean}, 'm2', {m2})"
    zero = "named_struct('n', 0L, 'mean', 0.0D, 'm2', 0.0D)"
    n, apart = "(s.n + p.n)", "(p.mean - s.mean)"
    step = (
        f"named_struct('n', {n}, 'mean', s.mean + {apart} * p.n / {n}, "
        f"'m2', s.m2 + p.m2 + {apart} * {apart} * s.n * p.n / {n})"
    )
    parts = f"filter(collect_list({part}), p -> p.n > 0)"
    return f"aggregate({parts}, {zero}, (s, p) -> {step}, t -> {finish})"
