"""Implements ``icechunk_spark.mirrored`` and ``icechunk_spark.freshness``.

Rules of this file
------------------
1. Spark's own Parquet reader receives the schema and the list of files, so that it opens no file to
   plan, and does not treat folders as partitions.
2. Options of the target's storage become options of this read only.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from icechunk_format.options.arguments import checked_call
from icechunk_format.options.keywords import option_strings
from icechunk_format.options.parse import collect_options
from icechunk_format.storage.location import Location
from icechunk_format.workflows.mirroring import DeltaTarget, Freshness, find_files
from icechunk_format.workflows.mirroring import freshness as of_copy
from icechunk_format.workflows.mirroring.versions import MirroredFiles
from icechunk_spark.jobs.errors import errors_on_one_line
from icechunk_spark.jobs.session import cores_of
from icechunk_spark.jobs.session_options import session_location, storage_settings
from icechunk_spark.schema import field_metadata, quoted

#: Key of the copied snapshot's id in the metadata of a field.
SNAPSHOT_KEY: Final = "icechunk_snapshot"

# Options of deltalake's S3 storage (in lower case, without "aws_") as those of Hadoop.
_HADOOP: Final = {
    "access_key_id": "fs.s3a.access.key",
    "secret_access_key": "fs.s3a.secret.key",
    "session_token": "fs.s3a.session.token",
    "endpoint": "fs.s3a.endpoint",
    "endpoint_url": "fs.s3a.endpoint",
    "region": "fs.s3a.endpoint.region",
}
_LISTING_TASKS: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_WAVES: Final = 8
_HADOOP_SCHEMES: Final = {"s3": "s3a"}


@checked_call("mirrored")
def mirrored(
    spark: SparkSession,
    target: str,
    *,
    tag: str | None = None,
    snapshot: str | None = None,
    as_of: datetime | str | None = None,
    target_options: Mapping[str, str] | None = None,
    **options: Any,
) -> DataFrame:
    """Read a copy of ``icechunk_spark.mirror`` with Spark's own Parquet reader.

    Columns, types and the metadata of fields are those of ``icechunk_spark.read``. The metadata of
    each field also contain the id of the snapshot, under the key ``icechunk_snapshot``.

    Parameters
    ----------
    spark
        The session; classic or Connect.
    target
        Local path or URL of the Delta table.
    tag, snapshot, as_of
        At most one of these: a tag of the repository, the id of a snapshot, or a timestamp, which
        selects the newest copied snapshot committed at or before it. By default the newest.
    target_options
        Options of the target's storage, as for ``mirror``.
    **options
        ``storage.*`` options of the repository, to resolve a tag.

    Returns
    -------
    DataFrame
        The cells of the copied snapshot.

    Raises
    ------
    NotFoundError
        The copy does not exist or does not contain the snapshot, or a vacuum deleted its files.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.mirrored(spark, "s3://lake/weather", tag="v1")  # doctest: +SKIP
    """
    if "asOf" in options:
        warnings.warn("asOf= is deprecated: use as_of=", DeprecationWarning, stacklevel=3)
    named = {"tag": tag, "snapshot": snapshot, "asOf": as_of}
    given = collect_options(option_strings({**named, **options}), "mirrored")
    table = DeltaTarget.of(target, target_options)
    with errors_on_one_line():
        found = find_files(
            table,
            tag=given.pop("tag", None),
            snapshot=given.pop("snapshot", None),
            as_of=given.pop("asOf", None),
            locate=partial(_located, spark, options),
        )
    schema = _schema(found)
    if not found.paths:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("recursiveFileLookup", True)
    # Spark's internal option for lists of files: brackets in a path are not patterns.
    reader = reader.option("__globPaths__", False)
    for name, value in _hadoop_options(table).items():
        reader = reader.option(name, value)
    with _listing_in_few_tasks(spark):
        rows = reader.parquet(*(_hadoop_url(path) for path in found.paths))
    # Spark drops the metadata of fields in the schema of a reader.
    return rows.select(
        *(quoted(item.name).alias(item.name, metadata=item.metadata) for item in schema)
    )


@checked_call("mirrored")
def freshness(
    target: str,
    *,
    target_options: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    **options: Any,
) -> Freshness:
    """Return the number of snapshots by which a copy is behind its branch.

    Parameters
    ----------
    target
        Local path or URL of the Delta table.
    target_options
        Options of the target's storage, as for ``mirror``.
    spark
        The session whose defaults apply to the repository; by default the active one, if any.
    **options
        ``storage.*`` options of the repository.

    Returns
    -------
    Freshness
        ``version`` of the table, ``snapshot_id``, ``branch_snapshot_id``, ``snapshots_behind``
        (None if the branch was reset or the snapshot expired), and when both were committed.

    Raises
    ------
    NotFoundError
        The copy or its repository does not exist.

    Examples
    --------
    >>> import icechunk_spark
    >>> icechunk_spark.freshness("s3://lake/weather").is_fresh  # doctest: +SKIP
    """
    collect_options(option_strings(options), "mirrored")
    session = SparkSession.getActiveSession() if spark is None else spark
    with errors_on_one_line():
        return of_copy(
            DeltaTarget.of(target, target_options), locate=partial(_located, session, options)
        )


def _located(spark: SparkSession | None, options: Mapping[str, Any], url: str) -> Location:
    """Return the location of the repository that a copy records."""
    return session_location(spark, url, storage_settings(options))


@contextlib.contextmanager
def _listing_in_few_tasks(spark: SparkSession) -> Iterator[None]:
    """Make Spark list files in a few tasks for each core, rather than in one task for each file.

    The setting belongs to the session, so it also affects concurrent reads of other threads.
    """
    before = spark.conf.get(_LISTING_TASKS, None)
    spark.conf.set(_LISTING_TASKS, _WAVES * cores_of(spark))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_LISTING_TASKS)
        else:
            spark.conf.set(_LISTING_TASKS, before)


def _schema(found: MirroredFiles) -> StructType:
    """Return the columns of a table version, with the metadata of fields."""
    # Delta serializes schemas as Spark does.
    stored: StructType = StructType.fromJson(json.loads(found.schema_json))
    return StructType(
        [
            StructField(
                item.name,
                item.dataType,
                nullable=True,
                metadata={
                    **field_metadata(found.record.columns.get(item.name, {})),
                    SNAPSHOT_KEY: found.record.snapshot_id,
                },
            )
            for item in stored
        ]
    )


def _hadoop_url(url: str) -> str:
    """Return the URL of a file for Spark's file systems."""
    scheme, separator, rest = url.partition("://")
    if separator:
        return f"{_HADOOP_SCHEMES.get(scheme, scheme)}://{rest}"
    # Hadoop does not decode the characters of a path.
    return f"file://{url}"


def _hadoop_options(target: DeltaTarget) -> dict[str, str]:
    """Return the options of the target's storage for Spark's file systems."""
    if target.is_local or not target.options:
        return {}
    if not target.url.startswith("s3://"):
        return {}  # other storages are configured in the session, as `fs.azure.*` and `fs.gs.*`
    found: dict[str, str] = {}
    for name, value in target.options.items():
        word = _HADOOP.get(name.lower().removeprefix("aws_"))
        if word is not None:
            found[word] = value
    if "fs.s3a.endpoint" in found:
        found["fs.s3a.path.style.access"] = "true"
    return found
