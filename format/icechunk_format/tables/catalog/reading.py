"""Reads a catalog: a dictionary, a file of YAML or JSON, or a folder of repositories.

Rules of this file
------------------
1. A catalog file is untrusted: it constructs no objects, has no aliases, and is limited in size.
2. A key that a mapping has twice is an error, since YAML and JSON would take the last one.
3. The folder of a catalog is listed one level deep: no objects of repositories are listed.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import yaml

from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.options.declare import fold_name
from icechunk_format.options.keywords import parse_arguments, path_string
from icechunk_format.options.location import location_of
from icechunk_format.options.read import ReadRequest
from icechunk_format.repository import RepositoryReader
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.tables.catalog.entries import Entry, entries_of

Parse = Callable[[str, Mapping[str, Any]], ReadRequest]
"""A function that parses a path and options of reading, with the defaults of a session."""

_FILE: Final = re.compile(r"[^/\\]+\.(ya?ml|json)", re.IGNORECASE)
_MOST_BYTES: Final = 4 << 20
_MOST_FOLDERS: Final = 10_000
_THREADS: Final = 16
# YAML's types of values that stay strings, as options are: the tag 1.10 is not 1.1, nor the time
# 12:30 a number of minutes, nor the tag 2024-07-01 a date.
_AS_WRITTEN: Final = (":int", ":float", ":timestamp")


def parse_alone(path: str, options: Mapping[str, Any]) -> ReadRequest:
    """Parse a path and options of reading, without a session."""
    return parse_arguments(path, options, "read")


def storage_only(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the storage among options of reading."""
    return {
        name: value
        for name, value in options.items()
        if fold_name(name).startswith("storage") or fold_name(name) == "credentials"
    }


def read_catalog(
    catalog: str | Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    parse: Parse = parse_alone,
) -> list[Entry]:
    """Return the entries of a catalog.

    Parameters
    ----------
    catalog
        A dictionary, the path or URL of a file that ends in ``.yaml``, ``.yml`` or ``.json``, or of
        a folder of repositories.
    options
        Options of reading for all entries, which those of an entry replace. Those of the storage
        are for the catalog, and for entries with paths relative to it.

    Raises
    ------
    InvalidInputError
        The catalog has another form, or entries cannot be used; all of these are named.
    NotFoundError
        The file does not exist, or the folder contains no repository.
    """
    options = dict(options or {})
    if isinstance(catalog, Mapping):
        return [one.with_options(options) for one in entries_of(catalog, "the catalog")]
    path = path_string(catalog)
    storage = storage_only(options)
    place = location_of(parse(path, storage))
    if _FILE.fullmatch(posixpath.basename(place.url)) is None:
        return [one.with_options(options) for one in _of_folder(place)]
    folder, name = place.url.rsplit("/", 1)
    data = open_storage(replace(place, url=folder)).get(name).data
    entries = entries_of(parsed_catalog(data, str(place)), f"the catalog {place}", folder)
    others = {name: value for name, value in options.items() if name not in storage}
    return [
        one.with_options(options if one.path.startswith(f"{folder}/") else others)
        for one in entries
    ]


def parsed_catalog(data: bytes, label: str) -> Any:
    """Return the tree of a catalog file; JSON is YAML, too.

    Raises InvalidInputError if the file is too large or not YAML, or a mapping has a key twice.
    """
    if len(data) > _MOST_BYTES:
        raise InvalidInputError(
            f"the catalog {label} has {len(data):,} bytes, more than {_MOST_BYTES:,}: split it",
            option="catalog",
        )
    try:
        if data.lstrip()[:1] == b"{":
            # Numbers as they are written: a tag 1.10 is not 1.1.
            return json.loads(
                data,
                object_pairs_hook=_unique,
                parse_float=str,
                parse_int=str,
                parse_constant=str,
            )
        return yaml.load(data, Loader=_CatalogLoader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        reason = " ".join(_reason(error).split())
        raise InvalidInputError(
            f"the catalog {label} is not YAML or JSON: {reason}", option="catalog"
        ) from None


def _reason(error: Exception) -> str:
    """Return the problem of a file and its position, without text of the file."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return str(error)
    mark = error.problem_mark or error.context_mark
    hint = "; YAML is indented with spaces" if "'\\t'" in str(error.problem) else ""
    # Marks quote the line, which may contain a credential in the wrong place.
    place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
    return f"{error.problem or error.context}{place}{hint}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is given twice")
    return found


class _CatalogLoader(yaml.SafeLoader):
    """Loader of YAML without aliases and repeated keys, and with numbers and dates as strings."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed: repeat the values")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            problem = f"the key {twice!r} is given twice"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return super().construct_mapping(node, deep=deep)


_CatalogLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if not tag.endswith(_AS_WRITTEN)]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _of_folder(place: Location) -> list[Entry]:
    """Return an entry for each repository directly below a folder."""
    if RepositoryReader.exists(place):
        raise InvalidInputError(
            f"{place} is a repository, not a folder of repositories: use icechunk_spark.view, or"
            " its folder",
            option="catalog",
        )
    folders = sorted(open_storage(place).folders())
    if len(folders) > _MOST_FOLDERS:
        raise InvalidInputError(
            f"{place} has {len(folders):,} folders, more than {_MOST_FOLDERS:,}: list the"
            " repositories in a catalog file",
            option="catalog",
        )
    with ThreadPoolExecutor(_THREADS) as threads:
        places = [replace(place, url=f"{place.url.rstrip('/')}/{name}") for name in folders]
        found = list(threads.map(RepositoryReader.exists, places))
    names = [name for name, is_one in zip(folders, found, strict=True) if is_one]
    if not names:
        raise NotFoundError(
            f"{place} contains no repository, and is not a file: a catalog is a folder of"
            " repositories, or a file that ends in .yaml, .yml or .json",
            kind="catalog",
        )
    tables = [(_view_name(name), {"path": name}) for name in names]
    known: dict[str, str] = {}
    for name, (view, _) in zip(names, tables, strict=True):
        if known.setdefault(view.casefold(), name) != name:
            raise InvalidInputError(
                f"the folders {known[view.casefold()]!r} and {name!r} of {place} would have one"
                f" name, {view!r}: name them in a catalog file",
                option="catalog",
            )
    return entries_of({"tables": dict(tables)}, str(place), place.url)


def _view_name(folder: str) -> str:
    """Return the name of a folder as that of a view: ``gfs-analysis.icechunk`` as gfs_analysis."""
    stem = re.sub(r"\.(icechunk|zarr)$", "", folder, flags=re.IGNORECASE)
    return re.sub(r"\W", "_", stem)
