"""Keeps the named credentials of sessions, and finds those of Spark's configuration.

Rules of this file
------------------
1. Names are of one session: another session of the same application has other credentials under
   the same name.
2. Credentials that are given to `register` take precedence over Spark's configuration, and those
   over the environment.
3. A setting of Spark's configuration that may be a credential is refused unless Spark redacts it in
   its UI and event log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.options.declare import fold_name
from icechunk_format.storage.credentials import Profiles, SessionKind, Source
from icechunk_format.storage.options import SECRET_WORDS
from icechunk_spark.jobs.session import is_connect, session_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Settings of Spark: ``spark.icechunk.credentials.NAME.SETTING``.
PREFIX: Final = "spark.icechunk.credentials."
_REDACTION: Final = "spark.redaction.regex"
_REDACTED_BY_DEFAULT: Final = "(?i)secret|password|token|access[.]?key"
_NAMES: Final = ("credentials", "virtualcredentials")
# Spellings that Spark redacts by default.
_REDACTED_SPELLINGS: Final = {"key": "access.key", "account_key": "access.key"}

# By session: Spark makes several Python objects for one session.
_profiles: Final[dict[str, Profiles]] = {}
# Sessions whose data source knows the names.
_knowing: Final[set[str]] = set()


def set_profiles(spark: SparkSession, sources: Mapping[str, Source] | None) -> None:
    """Set the named credentials of a session; None or an empty mapping removes them."""
    if sources is not None and not isinstance(sources, Mapping):
        raise InvalidInputError(
            "credentials must be settings by name, such as {'weather': {'key': '...', 'secret':"
            f" '...'}}}}, but is a {type(sources).__name__}",
            option="credentials",
        )
    found = Profiles(sources)
    _profiles.pop(session_key(spark), None)
    if found:
        _profiles[session_key(spark)] = found


def profiles_of(spark: SparkSession | None) -> Profiles:
    """Return the named credentials of a session, with those of Spark's configuration."""
    if spark is None:
        return Profiles()
    # Its objects keep the settings that a function returned.
    own = _profiles.get(session_key(spark), Profiles())
    kind: SessionKind = "connect" if is_connect(spark) else "classic"
    return own.with_others(_configured(spark), kind)


def with_profiles(options: Mapping[str, Any], profiles: Profiles) -> dict[str, Any]:
    """Return options with credentials instead of their names."""
    return {
        name: profiles.named(value) if is_credentials(name, value) and value else value
        for name, value in options.items()
    }


def is_credentials(name: str, value: Any) -> bool:
    """Return True if an option is a name of credentials."""
    return fold_name(str(name)).replace(".", "") in _NAMES and isinstance(value, str)


def expanded(options: Mapping[str, Any], profiles: Profiles) -> dict[str, Any]:
    """Return options with the settings of credentials, and empty names in their place.

    They are for data sources that do not know the names of the session.
    """
    found = dict(options)
    for name, value in options.items():
        if is_credentials(name, value) and value:
            family = "virtual.storage." if "virtual" in name.lower() else "storage."
            settings = profiles.named(value).settings()
            found |= {f"{family}{key}": string for key, string in settings.items()} | {name: ""}
    return found


def sendable(profiles: Profiles) -> Profiles:
    """Return profiles for Spark's planner processes, which Spark pickles.

    A function that cannot be pickled is replaced by one that raises an error.
    """
    from pyspark import cloudpickle

    found: dict[str, Source] = {}
    for name, source in profiles.sources().items():
        found[name] = source
        if callable(source):
            try:
                cloudpickle.dumps(source)  # type: ignore[no-untyped-call]
            except Exception:
                found[name] = _Unsendable(name)
    return Profiles(found, profiles.kind)


class _Unsendable:
    """A function of credentials that raises an error, in place of one that cannot be pickled."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self) -> Mapping[str, Any]:
        raise UnsupportedError(
            f"the function of credentials {self._name!r} cannot be pickled for Spark's planner"
            " process: define it without open clients and locks, or use icechunk_spark.view and"
            " icechunk_spark.read, which call it in the driver",
            credentials=self._name,
        )


def note_source(spark: SparkSession, *, knows_names: bool) -> None:
    """Note whether the data source of a session knows the names of its credentials."""
    (_knowing.add if knows_names else _knowing.discard)(session_key(spark))


def source_knows_names(spark: SparkSession) -> bool:
    """Return True if the data source of a session knows the names of its credentials."""
    return session_key(spark) in _knowing


def _configured(spark: SparkSession) -> dict[str, Source]:
    """Return the settings in Spark's configuration, by name."""
    settings: Mapping[str, str] = spark.conf.getAll
    found: dict[str, dict[str, str]] = {}
    for key, value in settings.items():
        name, dot, setting = key.removeprefix(PREFIX).partition(".")
        if key.startswith(PREFIX) and dot and setting:
            found.setdefault(name, {})[setting.replace(".", "_")] = value
            if SECRET_WORDS.search(setting) and not _is_redacted(key, settings):
                raise _shown_by_spark(key, setting)
    return dict(found)


def _is_redacted(key: str, settings: Mapping[str, str]) -> bool:
    try:
        return re.search(settings.get(_REDACTION, _REDACTED_BY_DEFAULT), key) is not None
    except re.error:  # a pattern that only Java has
        return False


def _shown_by_spark(key: str, setting: str) -> InvalidInputError:
    better = _REDACTED_SPELLINGS.get(setting.replace(".", "_"))
    advice = f"write {key.removesuffix(setting)}{better}, or " if better else ""
    return InvalidInputError(
        f"Spark shows the setting {key} in its UI and event log, since {_REDACTION} does not match"
        f" it: {advice}extend {_REDACTION}, or use icechunk_spark.register(spark, credentials=...)"
        " or the environment",
        option=key,
    )
