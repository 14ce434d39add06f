"""Credentials of storages under names, so that options, SQL and catalogs contain only names.

Rules of this file
------------------
1. No message, `repr` or hash shows a value: any value may be a credential. The cause of a failed
   function is not chained, since its text may contain a request with its headers.
2. A pickle of credentials contains their current settings, since the functions that return them,
   and the environment, belong to this process. A pickle of profiles contains the functions.
3. The settings that a function returns are kept until shortly before they expire.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

from icechunk_format.errors import IcechunkError, InvalidInputError, StorageError
from icechunk_format.names import nearest
from icechunk_format.storage.address import parse_url
from icechunk_format.storage.options import SECRET_WORDS, StorageOptions, canonical_options

Source: TypeAlias = Mapping[str, str] | Callable[[], Mapping[str, Any]] | None
"""Settings, a function that returns current ones, or None for those of the environment."""

SessionKind: TypeAlias = Literal["classic", "connect"]
"""Spark's kind of session, which determines where names can be set."""

#: The start of environment variables with settings: ``ICECHUNK_CREDENTIALS__WEATHER__SECRET``.
ENVIRONMENT: Final = "ICECHUNK_CREDENTIALS__"
#: Key of the time at which the settings that a function returns expire.
EXPIRES: Final = "expires_at"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
# Settings without a time of expiry are requested again after this time, and others this time
# before they expire.
_KEPT_SECONDS: Final = 300.0


class Credentials:
    """The settings of a storage under a name.

    Parameters
    ----------
    source
        The settings, named like the options ``storage.*`` without the prefix, a function that
        returns them, or None for those of the environment of this process.

    Raises
    ------
    InvalidInputError
        The name is invalid, or the settings are not strings by name.
    """

    __slots__ = ("_current", "_until", "name", "source")

    def __init__(self, name: str, source: Source = None) -> None:
        self.name = check_name(name)
        is_mapping = isinstance(source, Mapping)
        self.source: Source = _settings(name, source) if isinstance(source, Mapping) else source
        if not (is_mapping or source is None or callable(source)):
            raise InvalidInputError(
                f"credentials {name!r} must be settings by name, such as"
                " {'key': '...', 'secret': '...'}, or a function that returns them, but are of type"
                f" {type(source).__name__}",
                credentials=name,
            )
        self._current: StorageOptions | None = None
        self._until = 0.0

    def settings(self) -> StorageOptions:
        """Return the current settings.

        Raises
        ------
        InvalidInputError
            The environment has no such settings, or the function returns something else.
        StorageError
            The function failed.
        """
        if self._current is None or time.time() >= self._until:
            self._current, self._until = self._renewed()
        return self._current

    def _renewed(self) -> tuple[StorageOptions, float]:
        if isinstance(self.source, Mapping):
            return StorageOptions(self.source), float("inf")
        if self.source is None:
            found = environment_settings(self.name)
            if not found:
                raise unknown_credentials(self.name, environment_names())
            return StorageOptions(_settings(self.name, found)), 0.0
        try:
            given = self.source()
        except IcechunkError:
            raise
        except Exception as error:
            raise StorageError(
                f"the function of credentials {self.name!r} raised {type(error).__name__}: call it"
                " by itself to see the reason",
                credentials=self.name,
            ) from None
        if not isinstance(given, Mapping):
            raise InvalidInputError(
                f"the function of credentials {self.name!r} must return settings by name, but"
                f" returned a {type(given).__name__}",
                credentials=self.name,
            )
        until = _until(self.name, given.get(EXPIRES))
        kept = {key: value for key, value in given.items() if key != EXPIRES}
        if not kept:
            raise InvalidInputError(
                f"the function of credentials {self.name!r} returned no settings: return them by"
                " name, such as {'key': '...', 'secret': '...'}, or leave credentials out to use"
                " those of the environment",
                credentials=self.name,
            )
        return StorageOptions(_settings(self.name, kept)), until

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Credentials):
            return NotImplemented
        return self.name == other.name and self.source == other.source

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Credentials({self.name!r})"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return Credentials, (self.name, dict(self.settings()))


class Profiles:
    """Named credentials of a session; other names are looked up in the environment.

    `kind` is that of the session, for the error about an unknown name.
    """

    __slots__ = ("_sources", "kind")

    def __init__(
        self, sources: Mapping[str, Source] | None = None, kind: SessionKind | None = None
    ) -> None:
        found = {name: Credentials(name, source) for name, source in (sources or {}).items()}
        self._sources: dict[str, Credentials] = found
        self.kind = kind

    def __bool__(self) -> bool:
        return bool(self._sources)

    def __repr__(self) -> str:
        return f"Profiles({', '.join(self._sources)})"

    def __reduce__(self) -> tuple[object, ...]:
        return Profiles, (self.sources(), self.kind)

    def sources(self) -> dict[str, Source]:
        """Return the settings or functions by name."""
        return {name: one.source for name, one in self._sources.items()}

    def with_others(self, sources: Mapping[str, Source], kind: SessionKind | None) -> Profiles:
        """Return profiles with further credentials, which those of the same names replace."""
        found = Profiles(sources, kind)
        found._sources |= self._sources
        return found

    def named(self, name: str) -> Credentials:
        """Return the credentials of a name; raise InvalidInputError if there are none."""
        found = self._sources.get(check_name(name))
        if found is not None:
            return found
        if environment_settings(name):
            return Credentials(name)
        raise unknown_credentials(name, [*self._sources, *environment_names()], self.kind)


def check_name(name: object) -> str:
    """Return a name of credentials; raise InvalidInputError for anything else.

    The message does not show the value, which may be a credential in the wrong place.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidInputError(
            "option 'credentials' must be a name of at most 64 letters, digits, '_' and '-', such"
            " as 'weather', under which icechunk_spark.register or the environment has the settings"
            " of a storage",
            option="credentials",
        )
    return str(name)


def unknown_credentials(
    name: str, known: Iterable[str], kind: SessionKind | None = None
) -> InvalidInputError:
    """Return the error for a name without settings, with the places where it can be set."""
    names = sorted(set(known))
    near = nearest(name, names)
    hint = f"did you mean {near!r}? " if near else ""
    listed = f"Known are {', '.join(names)}. " if names else ""
    environment = f"by {variable_of(name)}* in the environment of "
    # Clients of Connect do not see the configuration, and plan some reads in the server.
    places = {
        None: f"or {environment}this process",
        "classic": f"by spark.icechunk.credentials.{name}.* in Spark's configuration, or"
        f" {environment}this process",
        "connect": f"or {environment}the client; for format('icechunk'), streams and SQL,"
        f" {environment}the server",
    }
    return InvalidInputError(
        f"no credentials are named {name!r}: {hint}{listed}Set them by icechunk_spark.register("
        f"spark, credentials={{{name!r}: ...}}), {places[kind]}",
        option="credentials",
        nearest=near,
    )


def variable_of(name: str) -> str:
    """Return the start of the environment variables with the settings of a name."""
    return f"{ENVIRONMENT}{re.sub('[^A-Z0-9]', '_', name.upper())}__"


def environment_settings(name: str) -> dict[str, str]:
    """Return the settings of a name in the environment of this process."""
    start = variable_of(name)
    return {
        variable[len(start) :].lower(): value
        for variable, value in os.environ.items()
        if variable.upper().startswith(start) and len(variable) > len(start)
    }


def environment_names() -> list[str]:
    """Return the names for which the environment has settings, in lower case."""
    rests = (
        variable[len(ENVIRONMENT) :].partition("__")
        for variable in os.environ
        if variable.upper().startswith(ENVIRONMENT)
    )
    return sorted({name.lower() for name, mark, setting in rests if name and mark and setting})


def with_credentials(
    credentials: Credentials | None, given: Mapping[str, str], url: str | None = None
) -> Mapping[str, str]:
    """Return the settings of a storage: those of credentials, replaced by given ones.

    `url` is that of the storage; without it, the settings are for storages of virtual chunks.

    Raises InvalidInputError if the given settings contain a credential as well, since half of each
    would be used.
    """
    if credentials is None:
        return given
    kind = "other" if url is None else parse_url(url).kind
    own = canonical_options(kind, given)
    both = sorted(name for name in own if SECRET_WORDS.search(name))
    if both:
        family = "virtual." if url is None else ""
        raise InvalidInputError(
            f"the options {family}credentials and {family}storage.{both[0]} exclude one another:"
            f" leave one of them out, or add {both[0]} to the credentials {credentials.name!r}",
            option=f"{family}credentials",
        )
    return {**canonical_options(kind, credentials.settings()), **own}


def _settings(name: str, given: Mapping[Any, Any]) -> dict[str, str]:
    """Return settings as strings, by names without the prefix ``storage.``."""
    found = {}
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str | int | float | None):
            raise InvalidInputError(
                f"credentials {name!r}: settings are strings by name, such as 'key' and 'secret',"
                f" but one is a {type(value).__name__} under a {type(key).__name__}",
                credentials=name,
            )
        if value is None:
            continue
        string = str(value).lower() if isinstance(value, bool) else str(value)
        found[re.sub(r"^storage[._]", "", key.strip(), flags=re.IGNORECASE)] = string
    return found


def _until(name: str, expires: Any) -> float:
    """Return the time in seconds since 1970 at which a function is called again."""
    now = time.time()
    if expires is None:
        return now + _KEPT_SECONDS
    try:
        at = datetime.fromisoformat(expires) if isinstance(expires, str) else expires
        left = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now
    except (AttributeError, TypeError, ValueError):
        raise InvalidInputError(
            f"credentials {name!r}: {EXPIRES} must be a datetime or an ISO 8601 timestamp, but is a"
            f" {type(expires).__name__}",
            credentials=name,
        ) from None
    if left <= 0:
        raise StorageError(
            f"the function of credentials {name!r} returned settings that expired"
            f" {-left:,.0f} seconds ago: renew them in the function, and check the clock of this"
            f" machine and the zone of {EXPIRES}, by default UTC",
            credentials=name,
        )
    return now + max(left - _KEPT_SECONDS, left / 2)
