"""Records the options of Spark's readers and writers, and adds the defaults of a session.

Spark keeps options in the JVM, where Python cannot read them again. The defaults may include
Hadoop's settings of storages.

Rules of this file
------------------
1. An option of the call takes precedence over a default of the session.
2. Secrets are read when a call needs them, and never kept.
3. Every call of a reader or writer is passed on to Spark unchanged, since the user may set another
   format later.
4. As in Spark, option names ignore case, the later of two values applies, and None leaves an option
   unset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.options.declare import Call, fold_name
from icechunk_format.options.keywords import given_options, option_strings, parse_arguments
from icechunk_format.options.location import location_of
from icechunk_format.options.parse import OPTIONS
from icechunk_format.options.path import split_path
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.values import parse_boolean
from icechunk_format.options.write import WriteOptions
from icechunk_format.options.write_request import parse_change
from icechunk_format.storage.credentials import Profiles
from icechunk_format.storage.location import Location
from icechunk_format.storage.options import SECRET_WORDS
from icechunk_spark.jobs.hadoop import options_of_hadoop, settings_of_hadoop, takes_settings
from icechunk_spark.jobs.profiles import (
    expanded,
    is_credentials,
    profiles_of,
    sendable,
    source_knows_names,
    with_profiles,
)
from icechunk_spark.jobs.session import session_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Defaults by session: Spark makes several Python objects for one session.
_defaults: Final[dict[str, dict[str, Any]]] = {}
_FROM_SPARK: Final = "storagefromspark"
_AUTHORIZE: Final = "virtual.authorize"
_FETCHING: Final = next(one.calls for one in OPTIONS if one.name == _AUTHORIZE)
_FORMAT: Final = "icechunk"
# Classes that Spark's readers and writers get, by the mixin and the class that they had.
_MADE: Final[dict[tuple[type, type], type]] = {}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SessionDefaults:
    """The defaults of a session, for functions that Spark runs in other processes.

    Attributes
    ----------
    hadoop
        Hadoop's settings of storages, if the options take settings from them.
    profiles
        The named credentials.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    hadoop: Mapping[str, str] | None = None
    profiles: Profiles = field(default_factory=Profiles)

    def __bool__(self) -> bool:
        """Return True if there is any default or name."""
        return bool(self.options or self.profiles)

    def applied(self, options: Mapping[str, Any], path: object, call: Call) -> dict[str, Any]:
        """Return the options of a call with the defaults that apply to it."""
        hadoop = self.hadoop
        if hadoop is None:  # the option storage.from_spark is refused
            found = {**defaults_of(options, path, call, self.options), **options}
        else:
            found = with_defaults(options, path, call, self.options, lambda: hadoop)
        return with_profiles(found, self.profiles)


def kept_defaults(spark: SparkSession) -> SessionDefaults:
    """Return the defaults of a session, which Spark's other processes cannot look up."""
    defaults = _defaults.get(session_key(spark), {})
    uses_hadoop = any(_folded(name) == _FROM_SPARK for name in defaults)
    return SessionDefaults(
        options=dict(defaults),
        hadoop=settings_of_hadoop(spark) if uses_hadoop else None,
        profiles=sendable(profiles_of(spark)),
    )


def set_session_options(spark: SparkSession, options: Mapping[str, Any]) -> None:
    """Set the defaults of a session; an empty mapping removes them."""
    _defaults.pop(session_key(spark), None)
    if options:
        _defaults[session_key(spark)] = dict(options)


def with_session_options(
    spark: SparkSession | None,
    options: Mapping[str, Any],
    path: object = "",
    call: Call = "read",
) -> dict[str, Any]:
    """Return the options of a call with the defaults of the session, and with Spark's settings.

    Defaults that do not apply are left out: Hadoop's settings of other storages, and authorized
    prefixes for calls that fetch no virtual chunks. Names of credentials become credentials.
    """
    defaults = _defaults.get(session_key(spark), {})
    found = with_defaults(options, path, call, defaults, lambda: settings_of_hadoop(spark))
    if not any(is_credentials(name, value) for name, value in found.items()):
        return found
    return with_profiles(found, profiles_of(spark))


def with_defaults(
    options: Mapping[str, Any],
    path: object,
    call: Call,
    defaults: Mapping[str, Any],
    of_hadoop: Callable[[], Mapping[str, str]],
) -> dict[str, Any]:
    """Return the options of a call with defaults; `of_hadoop` returns Hadoop's settings."""
    found = {name: value for name, value in options.items() if value is not None}
    found |= defaults_of(found, path, call, defaults)
    named = [name for name in found if _folded(name) == _FROM_SPARK]
    wanted = [parse_boolean("storage.from_spark", str(found.pop(name))) for name in named]
    url = _url_of(found, path)
    if not any(wanted) or not takes_settings(url) or _has(found, "credentials"):
        return found
    # Half of two pairs of credentials would be neither.
    has_own = any(_folded(name).startswith("storage") and _is_secret(name) for name in found)
    for name, value in options_of_hadoop(url, of_hadoop()).items():
        if not _has(found, name) and not (has_own and _is_secret(name)):
            found[name] = value
    return found


def _is_secret(name: str) -> bool:
    """Return True if an option of the storage is a credential, or declines them."""
    word = _folded(name).removeprefix("storage")
    return word == "anon" or SECRET_WORDS.search(word) is not None


def defaults_of(
    options: Mapping[str, Any], path: object, call: Call, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the defaults that apply to a call and that its options do not set."""
    return {
        name: value
        for name, value in defaults.items()
        if not _has(options, name) and (name != _AUTHORIZE or _fetches(options, path, call))
    }


def session_read(
    spark: SparkSession | None, path: object, options: Mapping[str, Any], call: Call = "read"
) -> ReadRequest:
    """Parse the path and the options of a function, with the defaults of the session."""
    return parse_arguments(path, with_session_options(spark, options, path, call), call)


def session_location(
    spark: SparkSession | None, path: object, options: Mapping[str, Any]
) -> Location:
    """Return the location of a repository from `storage.*` options and defaults of the session."""
    return location_of(session_read(spark, path, options, "maintenance"))


def session_change(
    spark: SparkSession, path: str, options: Mapping[str, Any], call: Call
) -> tuple[ReadRequest, WriteOptions]:
    """Parse the options of a function that reads and commits, with the defaults of the session."""
    given = with_session_options(spark, options, path, call)
    return parse_change(given_options(path, given), call)


def workflow_target(
    spark: SparkSession,
    to: str,
    to_options: Mapping[str, str] | None,
    options: Mapping[str, Any],
) -> Location:
    """Return the location of the result of a function; `to_options` replace `options`."""
    if to_options is None:
        to_options = storage_settings(options)
    return session_location(spark, to, to_options)


def storage_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the storage of a repository among those of a call."""
    return {
        name: value
        for name, value in options.items()
        if fold_name(name).startswith("storage") or fold_name(name) == "credentials"
    }


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


def _fetches(options: Mapping[str, Any], path: object, call: Call) -> bool:
    """Return True if a call reads values, for which virtual chunks are fetched."""
    if call not in _FETCHING:
        return False
    layout = next((v for name, v in options.items() if fold_name(name) == "layout"), "cells")
    return "#" not in str(path) and not _has(options, "table") and layout != "refs"


def _url_of(options: Mapping[str, Any], path: object) -> str:
    """Return the path of a call, or of the option with the path, without a metadata table."""

    def strings(values: Iterable[object]) -> list[str]:
        return [str(one).strip() for one in values if isinstance(one, str | PathLike) and str(one)]

    found = strings(path if isinstance(path, list | tuple) else [path]) or strings(
        value for name, value in options.items() if fold_name(name) in ("path", "paths")
    )
    return split_path(found[0])[0] if found else ""


def _has(options: Mapping[str, Any], name: str) -> bool:
    return any(_folded(given) == _folded(name) for given in options)


def _folded(name: str) -> str:
    return fold_name(name).replace(".", "").replace("_", "").replace("-", "")


class NotedOptions:
    """Mixin for Spark's `DataFrameReader` and `DataFrameWriter` that records format and options."""

    _icechunk_format: str | None = None
    _icechunk_options: dict[str, Any]

    def format(self, source: str) -> Any:
        """Record the format, and pass it to Spark."""
        self._icechunk_format = source
        return super().format(source)  # type: ignore[misc]

    def option(self, key: str, value: Any) -> Any:
        """Record an option, and pass it to Spark."""
        self._note({key: value})
        return super().option(key, value)  # type: ignore[misc]

    def options(self, **options: Any) -> Any:
        """Record several options, and pass them to Spark."""
        self._note(options)
        return super().options(**options)  # type: ignore[misc]

    def _note(self, options: dict[str, Any]) -> None:
        for name, value in options.items():
            if value is not None:
                noted = self._icechunk_options.items()
                kept = {key: old for key, old in noted if key.lower() != name.lower()}
                self._icechunk_options = {**kept, name: value}

    def _is_ours(self, source: str | None = None) -> bool:
        chosen = source if source is not None else self._icechunk_format
        return chosen is not None and chosen.strip().lower() == _FORMAT


class DefaultsLoad(NotedOptions):
    """Mixin for Spark's readers that passes the defaults of a session to the data source."""

    _spark: Any

    def load(
        self, path: Any = None, format: str | None = None, schema: Any = None, **options: Any
    ) -> Any:
        """Load a table or stream by Spark, with the defaults of the session for icechunk."""
        if format is not None:
            self.format(format)
        self.options(**options)
        if self._is_ours():
            noted = self._icechunk_options
            given = with_session_options(self._spark, noted, path)
            named = {k: v for k, v in noted.items() if is_credentials(k, v) and v}
            if named and not source_knows_names(self._spark):
                given |= expanded(named, profiles_of(self._spark))
                self.options(**dict.fromkeys(named, ""))
            given = option_strings(given)
            for name, value in given.items():
                if name not in noted:
                    self.option(name, value)
            for name in noted:
                # The settings are given above; the data source cannot read them.
                if _folded(name) == _FROM_SPARK:
                    self.option(name, "false")
        return super().load(path, schema=schema)  # type: ignore[misc]


class NotedWrite(NotedOptions):
    """Mixin for Spark's writers that also records partition columns, which arrays do not have."""

    _icechunk_frame: Any
    _icechunk_refused: str | None = None

    def partitionBy(self, *columns: Any) -> Any:
        """Record that partitions were requested, and pass them to Spark."""
        self._icechunk_refused = "partitionBy"
        return super().partitionBy(*columns)  # type: ignore[misc]

    def _icechunk_strings(self, path: str | None, partition_by: Any) -> dict[str, Any]:
        """Return path and options as strings; refuse recorded partitions and buckets."""
        refused = "partitionBy" if partition_by is not None else self._icechunk_refused
        if refused is not None:
            raise UnsupportedError(
                f"{refused} does not apply to arrays: leave it out, and set the chunk shape,"
                " as in .option('chunks', 'time=24,latitude=180')",
                method=refused,
            )
        self._note({"path": path})
        return option_strings(self._icechunk_options)


class CatalogWrite(NotedOptions):
    """Mixin for Spark's `DataFrameWriterV2`, which creates tables of the catalog."""

    def using(self, provider: str) -> Any:
        """Pass the provider to Spark; refuse icechunk before Spark creates or drops a table."""
        if self._is_ours(provider):
            raise catalog_refused("writeTo")
        return super().using(provider)  # type: ignore[misc]


def catalog_refused(method: str) -> UnsupportedError:
    """Return the error of a write to a catalog table."""
    return UnsupportedError(
        f"{method} needs a catalog table, and Spark drops the options of catalog tables of Python"
        " sources, including the path: use df.write.format('icechunk').mode('append').save(path)",
        method=method,
    )


def noting(made: Any, mixin: type[NotedOptions]) -> Any:
    """Add `mixin` to the class of `made`, a new reader or writer of Spark; return `made`."""
    base = type(made)
    if (mixin, base) not in _MADE:
        _MADE[mixin, base] = type(base.__name__, (mixin, base), {"__doc__": base.__doc__})
    made.__class__ = _MADE[mixin, base]
    made._icechunk_options = {}
    return made
