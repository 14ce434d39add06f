"""Checks the entries of a catalog: names, paths and options.

A catalog maps names to tables, like the YAML catalogs of Intake:
``tables: {weather: {path: ...}}``. An entry has a path, any option of reading, a comment, and the
tags that have names of their own.

Rules of this file
------------------
1. A catalog holds no credentials, since it is shared: an entry has the name of credentials.
2. No two entries have one name, regardless of case, since Spark ignores the case of names.
3. An unknown key is an error with the nearest option.
4. A path that is neither absolute nor a URL is relative to the catalog, as in STAC.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Final

from icechunk_format.errors import InvalidInputError
from icechunk_format.names import nearest, shown
from icechunk_format.options.declare import fold_name
from icechunk_format.options.keywords import parse_arguments
from icechunk_format.options.values import listed
from icechunk_format.storage.options import SECRET_WORDS

_KEYS: Final = ("tables", "comment")
_NAME: Final = re.compile(r"\w{1,128}")
_ABSOLUTE: Final = re.compile(r"^(?:[A-Za-z][A-Za-z0-9+.\-]*:|/|~)")
_VARIABLE: Final = re.compile(r"\$\{\w+\}|(?:^|(?<=/))\$\w+|\{\{.*?\}\}|%[A-Z_]+%")
# Keys that other catalogs have instead.
_OTHER_PATHS: Final = ("url", "uri", "urlpath", "href", "location")
# Families of options whose settings may be nested, as in ``storage: {region: eu}``.
_FAMILIES: Final = ("storage", "virtual")
_PINNED: Final = ("tag", "snapshot", "snapshotid", "asof", "versionasof", "timestampasof")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A named table of a catalog."""

    name: str
    path: str
    """Path or URL of the repository, or ``path#name`` for a metadata table."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of reading, in any spelling."""
    comment: str | None = None
    tags: tuple[str, ...] | str = ()
    """Tags that have names of their own, such as ``weather@v1``; ``"all"`` stands for all tags."""

    @property
    def is_pinned(self) -> bool:
        """Return True if the options select a snapshot that does not change."""
        return any(fold_name(name) in _PINNED for name in self.options)

    def at_tag(self, tag: str) -> Entry:
        """Return the entry of a tag."""
        kept = {k: v for k, v in self.options.items() if fold_name(k) not in ("branch", *_PINNED)}
        return replace(self, name=f"{self.name}@{tag}", options={**kept, "tag": tag}, tags=())

    def with_options(self, options: Mapping[str, Any]) -> Entry:
        """Return the entry with other options, which its own replace."""
        own = {fold_name(name) for name in self.options}
        added = {k: v for k, v in options.items() if fold_name(k) not in own and v is not None}
        return replace(self, options={**added, **self.options})


def entries_of(tree: object, label: str, base: str = "") -> list[Entry]:
    """Return the entries of a catalog; relative paths begin at `base`, a folder.

    Raises InvalidInputError if the catalog has another form, an unknown key, a credential, or two
    entries of one name. All wrong entries are named.
    """
    if not isinstance(tree, Mapping) or not isinstance(tree.get("tables"), Mapping):
        raise InvalidInputError(
            f"{label} must have the key 'tables' with an entry for each name, such as"
            " {'tables': {'weather': {'path': 's3://bucket/weather'}}}",
            option="catalog",
        )
    unknown = [str(key) for key in tree if key not in _KEYS]
    if unknown:
        raise InvalidInputError(
            f"{label} has the unknown {'key' if len(unknown) == 1 else 'keys'} {listed(unknown)}:"
            f" it has {listed(_KEYS)}; options of a table are keys of its entry",
            option=unknown[0],
        )
    entries, problems = [], []
    for name, given in tree["tables"].items():
        try:
            entries.append(_entry(name, given, base))
        except InvalidInputError as error:
            problems.append(f"{shown(name)}: {error.message}")
    problems += _repeated(entries)
    if problems:
        raise of_problems(label, problems)
    return entries


def of_problems(label: str, problems: Sequence[str]) -> InvalidInputError:
    """Return the error for entries of a catalog that cannot be used."""
    tables = "a table" if len(problems) == 1 else f"{len(problems)} tables"
    return InvalidInputError(
        f"{label} has {tables} that cannot be used: {'; '.join(problems)}",
        option="catalog",
        problems=tuple(problems),
    )


def refuse_secrets(options: Mapping[str, Any]) -> None:
    """Raise InvalidInputError for options with credentials."""
    found = [
        str(name)
        for name, value in options.items()
        if fold_name(str(name)).startswith(_FAMILIES)
        and not fold_name(str(name)).endswith("credentials")
        and SECRET_WORDS.search(str(name))
        and value != "anon"
    ]
    if found:
        raise InvalidInputError(
            f"a catalog holds no credentials ({listed(found)}), since it is shared: give a name, as"
            " in credentials: weather, and the settings to icechunk_spark.register, Spark's"
            " configuration or the environment",
            option=found[0],
        )


def _repeated(entries: Sequence[Entry]) -> Iterator[str]:
    known: dict[str, str] = {}
    for entry in entries:
        first = known.setdefault(entry.name.casefold(), entry.name)
        if first is not entry.name:
            yield f"{entry.name!r}: the name is the same as {first!r}, since case is ignored"


def _entry(name: object, given: object, base: str) -> Entry:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        quoted = "" if isinstance(name, str) else ": put it in quotes to make it a string"
        raise InvalidInputError(
            f"a name consists of letters, digits and '_', up to 128 of them{quoted}"
        )
    given = {"path": given} if isinstance(given, str | PurePath) else given
    if not isinstance(given, Mapping):
        raise InvalidInputError("an entry has keys, such as path: s3://bucket/weather")
    options = _flattened(given)
    path = _path(options, base)
    comment, tags = options.pop("comment", None), options.pop("tags", None)
    if comment is not None and not isinstance(comment, str):
        raise InvalidInputError("the comment must be a string")
    refuse_secrets(options)
    entry = Entry(name=name, path=path, options=options, comment=comment, tags=_tags(tags))
    parse_arguments(entry.path, entry.options, "read")  # raises for unknown keys
    return entry


def _path(options: dict[str, Any], base: str) -> str:
    """Remove the path from the options of an entry, and return it as a URL or absolute path."""
    path = options.pop("path", None)
    if isinstance(path, PurePath):
        path = str(path)
    if path is None:
        other = next((key for key in options if fold_name(key) in _OTHER_PATHS), None)
        near = other or nearest("path", list(options), cutoff=0.5)
        hint = f", and not {near!r}" if near else ""
        raise InvalidInputError(f"the key 'path' is missing: it has the repository's URL{hint}")
    if not isinstance(path, str) or not path.strip():
        raise InvalidInputError(
            "the key 'path' must be a string, such as 's3://bucket/weather', but is"
            f" {'empty' if isinstance(path, str) else f'a {type(path).__name__}'}"
        )
    path = path.strip()
    variable = _VARIABLE.search(path)
    if variable is not None:
        raise InvalidInputError(
            f"the path contains {variable[0]!r}, but a catalog does not use variables of the"
            " environment: write the value, or give attach a dictionary with it"
        )
    if base and _ABSOLUTE.match(path) is None:
        path = f"{base.rstrip('/')}/{path.removeprefix('./')}"
    return path


def _flattened(given: Mapping[Any, Any], family: str = "") -> dict[str, Any]:
    """Return keys and values; the settings of a nested family have its name before theirs."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        name = f"{family}{key}"
        if isinstance(value, Mapping) and name in (*_FAMILIES, "virtual.storage"):
            found |= _flattened(value, f"{name}.")
        elif value is not None:
            found[name] = value
    return found


def _tags(given: object) -> tuple[str, ...] | str:
    if given is None or given is False:
        return ()
    if given is True:
        return "all"
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(tag, str) for tag in names):
        raise InvalidInputError("tags must be a list of names, or true for all tags")
    return tuple(names)
