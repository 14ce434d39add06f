"""Implements ``icechunk_spark.mirrored`` and ``icechunk_spark.freshness``.

Rules of this file
------------------
1. Files are read by Spark's own Parquet reader, which is given the schema and the list of files: it
   looks at no file to plan, and folders are no partitions.
2. Options of the target's store reach Spark as options of this one read.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from icechunk_format.options.parse import collect_options
from icechunk_format.options.python_values import option_texts
from icechunk_spark.jobs.partitions import cores_of

if TYPE_CHECKING:
    from icechunk_format.workflows.mirroring.target import DeltaTarget
    from icechunk_format.workflows.mirroring.versions import Freshness, MirroredFiles

#: Key of a field's metadata that holds the id of the copied snapshot.
SNAPSHOT_KEY: Final = "icechunk_snapshot"

# Options of deltalake's S3 store (in small letters, without "aws_") in the words of Hadoop.
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
_WHY: Final = (
    "here: a copy has what it was made with, so only 'storage.*' of the repository can be given"
)


def mirrored(
    spark: SparkSession,
    target: str,
    *,
    tag: str | None = None,
    snapshot: str | None = None,
    asOf: datetime | str | None = None,
    target_options: Mapping[str, str] | None = None,
    **options: Any,
) -> DataFrame:
    """Read a copy that ``icechunk_spark.mirror`` made, with Spark's own Parquet reader.

    Columns, types and the metadata of fields are those of ``icechunk_spark.read``. The plan names
    the files, and the metadata of each field the snapshot under the key ``icechunk_snapshot``.

    Parameters
    ----------
    spark
        The session; classic or Connect.
    target
        Local path or URL of the Delta table.
    tag, snapshot, asOf
        At most one of them: a tag of the repository, the id of a snapshot, or an instant, which
        means the newest copied snapshot that was committed at or before it. By default the newest.
    target_options
        Settings of the target's store, as for ``mirror``.
    **options
        ``storage.*`` of the repository, which is asked what a tag means.

    Raises
    ------
    NotFoundError
        There is no copy, the snapshot is not in it, or a vacuum deleted its files.
    """
    from icechunk_format.options.location import storage_alone
    from icechunk_format.workflows.mirroring.target import DeltaTarget
    from icechunk_format.workflows.mirroring.versions import find_files
    from icechunk_spark.jobs.errors import errors_on_one_line
    from icechunk_spark.schema import quoted

    versions = {"tag": tag, "snapshot": snapshot, "asOf": asOf}
    given = collect_options(option_texts({**versions, **options}), use="read")
    place = DeltaTarget.of(target, target_options)
    with errors_on_one_line():
        found = find_files(
            place,
            tag=given.pop("tag", None),
            snapshot=given.pop("snapshot", None),
            as_of=given.pop("asOf", None),
            storage=storage_alone(given, _WHY),
        )
    schema = _schema(found)
    if not found.paths:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("recursiveFileLookup", True)
    # Spark's own switch for lists of files: brackets in a path are no patterns.
    reader = reader.option("__globPaths__", False)
    for name, value in _hadoop_options(place).items():
        reader = reader.option(name, value)
    with _listing_in_few_tasks(spark):
        rows = reader.parquet(*(_hadoop_url(path) for path in found.paths))
    # Spark leaves out the metadata of fields that a reader gets.
    return rows.select(
        *(quoted(item.name).alias(item.name, metadata=item.metadata) for item in schema)
    )


def freshness(
    target: str, *, target_options: Mapping[str, str] | None = None, **options: Any
) -> Freshness:
    """Tell how far a copy is behind the branch that it follows.

    Parameters
    ----------
    target
        Local path or URL of the Delta table.
    target_options
        Settings of the target's store, as for ``mirror``.
    **options
        ``storage.*`` of the repository.

    Returns
    -------
    Freshness
        ``version`` of the table, ``snapshot_id``, ``branch_snapshot_id``, ``snapshots_behind``
        (None where the branch was reset or the snapshot expired), and when both were committed.

    Raises
    ------
    NotFoundError
        There is no copy, or its repository is gone.
    """
    from icechunk_format.options.location import storage_alone
    from icechunk_format.workflows.mirroring.target import DeltaTarget
    from icechunk_format.workflows.mirroring.versions import freshness as of_copy
    from icechunk_spark.jobs.errors import errors_on_one_line

    storage = storage_alone(collect_options(option_texts(options), use="read"), _WHY)
    with errors_on_one_line():
        return of_copy(DeltaTarget.of(target, target_options), storage=storage)


@contextlib.contextmanager
def _listing_in_few_tasks(spark: SparkSession) -> Iterator[None]:
    """Let Spark look at many files in some tasks for each core, rather than in one for each file.

    The setting belongs to the session, so reads of other threads have it meanwhile, too.
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
    """Return the columns of a version, with the metadata that reading gives them."""
    from icechunk_spark.schema import field_metadata

    # Delta writes schemas as Spark does.
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
    """Return the URL of a file as Spark's file systems name it."""
    scheme, separator, rest = url.partition("://")
    if separator:
        return f"{_HADOOP_SCHEMES.get(scheme, scheme)}://{rest}"
    # Hadoop takes the characters of a path as they are, and decodes none.
    return f"file://{url}"


def _hadoop_options(target: DeltaTarget) -> dict[str, str]:
    """Return the options of the target's store in the words of Spark's file systems."""
    if target.is_local or not target.options:
        return {}
    if not target.url.startswith("s3://"):
        return {}  # other stores are configured in the session, as `fs.azure.*` and `fs.gs.*`
    found: dict[str, str] = {}
    for name, value in target.options.items():
        word = _HADOOP.get(name.lower().removeprefix("aws_"))
        if word is not None:
            found[word] = value
    if "fs.s3a.endpoint" in found:
        found["fs.s3a.path.style.access"] = "true"
    return found
