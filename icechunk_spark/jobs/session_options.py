"""Adds the defaults of a session to the options of a call, and Hadoop's settings of S3.

Rules of this file
------------------
1. An option of the call takes precedence over a default of the session.
2. Secrets are read when a call needs them, and never kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.options.declare import fold_name
from icechunk_format.options.keywords import parse_arguments
from icechunk_format.options.read import ReadRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Defaults by session: Spark makes several Python objects for one session.
_defaults: Final[dict[str, dict[str, Any]]] = {}
_FROM_SPARK: Final = "storagefromspark"
_AUTHORIZE: Final = "virtual.authorize"
_HADOOP: Final = {
    "fs.s3a.access.key": "storage.key",
    "fs.s3a.secret.key": "storage.secret",
    "fs.s3a.session.token": "storage.token",
    "fs.s3a.endpoint": "storage.endpoint_url",
    "fs.s3a.endpoint.region": "storage.region",
}


def set_session_options(spark: SparkSession, options: Mapping[str, Any]) -> None:
    """Set the defaults of a session; an empty mapping removes them."""
    _defaults.pop(_key(spark), None)
    if options:
        _defaults[_key(spark)] = dict(options)


def with_session_options(
    spark: SparkSession | None, options: Mapping[str, Any], path: object = ""
) -> dict[str, Any]:
    """Return options with the defaults of the session, and with Spark's settings of S3."""
    found = {name: value for name, value in options.items() if value is not None}
    for name, value in _defaults.get(_key(spark), {}).items():
        if not _has(found, name) and (name != _AUTHORIZE or _fetches(found, path)):
            found[name] = value
    asked = [name for name in found if _folded(name) == _FROM_SPARK]
    wanted = [found.pop(name) for name in asked]
    if any(str(value).strip().lower() == "true" for value in wanted):
        for name, value in _of_hadoop(spark).items():
            if not _has(found, name):
                found[name] = value
    return found


def workflow_read(
    spark: SparkSession, function: str, path: str, options: Mapping[str, Any], **chosen: Any
) -> ReadRequest:
    """Parse the read options of a function, with the defaults of the session.

    InvalidInputError is raised for an invalid option, and for an option other than `storage_*` and
    `virtual_*` in `options`.
    """
    for name in options:
        if not fold_name(name).startswith(("storage", "virtual")):
            raise InvalidInputError(
                f"{function} has no option {name!r}; besides its keywords, it takes storage_* and"
                " virtual_*",
                option=name,
            )
    return parse_arguments(path, with_session_options(spark, {**options, **chosen}), "sample")


def active_session() -> SparkSession:
    """Return the session of this thread, or raise InvalidInputError."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except (PySparkException, RuntimeError):
        raise InvalidInputError(
            "no Spark session is active: pass one as spark=", option="spark"
        ) from None


def _fetches(options: Mapping[str, Any], path: object) -> bool:
    """Return True if a call reads values, for which virtual chunks are fetched."""
    layout = next((v for name, v in options.items() if fold_name(name) == "layout"), "cells")
    return "#" not in str(path) and not _has(options, "table") and layout != "refs"


def _has(options: Mapping[str, Any], name: str) -> bool:
    return any(_folded(given) == _folded(name) for given in options)


def _folded(name: str) -> str:
    return fold_name(name).replace(".", "").replace("_", "").replace("-", "")


def _of_hadoop(spark: SparkSession | None) -> dict[str, str]:
    context = getattr(spark, "_jsc", None)
    if context is None:
        raise UnsupportedError(
            "storage.from_spark needs a classic session, since a client of Connect cannot read"
            " Hadoop's settings: set storage.key, storage.secret and storage.region",
            option="storage.from_spark",
        )
    settings = context.hadoopConfiguration()
    found = {ours: settings.get(theirs) for theirs, ours in _HADOOP.items()}
    kept = {name: str(value) for name, value in found.items() if value}
    endpoint = kept.get("storage.endpoint_url")
    if endpoint is not None and "://" not in endpoint:
        uses_tls = str(settings.get("fs.s3a.connection.ssl.enabled") or "true").lower() == "true"
        kept["storage.endpoint_url"] = f"http{'s' if uses_tls else ''}://{endpoint}"
    return kept


def _key(spark: SparkSession | None) -> str:
    jvm_session = getattr(spark, "_jsparkSession", None)
    if jvm_session is not None:
        return str(jvm_session.sessionUUID())
    return str(getattr(spark, "session_id", id(spark)))
