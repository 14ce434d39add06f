"""Defines headers of files: their arrays and groups, without values.

Attributes that vary from file to file and do not affect values are separated, so that many files
share one ``Header``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.tables.cf import has_varying_unit
from icechunk_format.zarr.zarr_json import ArrayMetadata, parse_array_metadata

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.scanning.parsed import ParsedArray

VOLATILE: Final = frozenset(
    [
        "history",
        "date_created",
        "date_modified",
        "date_issued",
        "date_metadata_modified",
        "creation_date",
        "created",
        "modified",
        "time_coverage_start",
        "time_coverage_end",
        "time_coverage_duration",
        "tracking_id",
        "uuid",
        "id",
        "actual_range",
        "nco",
        "cdo",
        "nco_openmp_thread_number",
        "source_file",
        "filename",
        "file_name",
        "product_name",
        "start_date",
        "stop_date",
        "_ncproperties",
    ]
)
"""Attributes, in lower case, that vary from file to file and do not affect values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Groups and arrays of a file, without volatile attributes."""

    arrays: tuple[tuple[str, str], ...] = ()
    """Path and ``zarr.json`` of each array, sorted by path."""
    groups: tuple[tuple[str, str], ...] = ()
    """Path and attributes of each group; the root is ``""``."""
    volatile: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    """Volatile attributes of the first file, by path."""

    def documents(self) -> dict[str, ArrayMetadata]:
        """Return the arrays by path."""
        return {path: metadata_of(string, path) for path, string in self.arrays}

    def times(self) -> Mapping[str, ArrayMetadata]:
        """Return the arrays of times by path; bounds get the units and calendar of their times."""
        return _times_in(self.arrays)

    def decoded(self) -> dict[str, ArrayMetadata]:
        """Return the arrays by path, with the attributes by which their values are decoded."""
        return {**self.documents(), **self.times()}


def header_of(arrays: Sequence[ParsedArray], groups: Mapping[str, dict[str, Any]]) -> Header:
    """Return the header of a file."""
    volatile: dict[str, dict[str, Any]] = {}
    strings = []
    for array in arrays:
        string, volatile[array.path] = _without_volatile(array.json_document)
        strings.append((array.path, string))
    own = []
    for path, given in sorted(groups.items()):
        attributes, volatile[f"{path}/"] = _apart(given)
        own.append((path, json.dumps(attributes, sort_keys=True, default=str)))
    return Header(arrays=tuple(strings), groups=tuple(own), volatile=volatile)


@lru_cache(maxsize=4096)
def _without_volatile(string: str) -> tuple[str, dict[str, Any]]:
    """Split the volatile attributes from a ``zarr.json``."""
    document = json.loads(string)
    document["attributes"], volatile = _apart(document.get("attributes") or {})
    return json.dumps(document, sort_keys=True), volatile


def _apart(attributes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    stays = {k: v for k, v in attributes.items() if k.lower() not in VOLATILE}
    return stays, {k: v for k, v in attributes.items() if k not in stays}


def coordinate_paths(documents: Mapping[str, ArrayMetadata]) -> set[str]:
    """Return the paths of arrays that describe others: coordinates, bounds, grid mappings."""
    found = set()
    for path, document in documents.items():
        folder = path.rpartition("/")[0]
        if path.rpartition("/")[2] in (document.dimension_names or ()):
            found.add(path)
        for key in ("coordinates", "bounds", "climatology", "grid_mapping"):
            words = str(document.attributes.get(key, "")).replace(":", " ").split()
            found |= {f"{folder}/{word}".lstrip("/") for word in words}
    return found & documents.keys()


def loaded_paths(
    documents: Mapping[str, ArrayMetadata], loadable: Collection[str] | None
) -> set[str]:
    """Return the paths of arrays to store; bounds of times are stored with the times.

    `loadable` has names or paths; None means the coordinates of dimensions.
    """
    found = set()
    for path, document in documents.items():
        name = path.rpartition("/")[2]
        if document.dimension_names == (name,) if loadable is None else {name, path} & {*loadable}:
            found |= {path, *_bounds_of(path, document)}
    return found & documents.keys()


def bounds_of_scalars(documents: Mapping[str, ArrayMetadata]) -> set[str]:
    """Return the paths of bounds of scalar times, which change from file to file with them."""
    found = {b for path, own in documents.items() if own.ndim == 0 for b in _bounds_of(path, own)}
    return found & documents.keys()


@lru_cache(maxsize=4096)
def _times_in(arrays: tuple[tuple[str, str], ...]) -> Mapping[str, ArrayMetadata]:
    documents = {path: metadata_of(string, path) for path, string in arrays}
    found = {path: own for path, own in documents.items() if is_time(own)}
    for path, document in list(found.items()):
        units = {k: v for k, v in document.attributes.items() if k in ("units", "calendar")}
        for bounds in documents.keys() & _bounds_of(path, document):
            own = documents[bounds]
            found[bounds] = own.with_attributes({**units, **own.attributes})
    return found


def is_time(document: ArrayMetadata) -> bool:
    """Return True if an array has times; months and years of varying length are plain numbers."""
    return " since " in str(document.attributes.get("units")) and not is_varying(document)


def is_varying(document: ArrayMetadata) -> bool:
    """Return True if the units of an array are months or years of varying length."""
    units, calendar = (document.attributes.get(key) for key in ("units", "calendar"))
    return isinstance(units, str) and has_varying_unit(units, calendar)


def _bounds_of(path: str, document: ArrayMetadata) -> set[str]:
    """Return the paths of bounds that the attributes of a time array name."""
    if not is_time(document):
        return set()
    named = [document.attributes.get(key) for key in ("bounds", "climatology")]
    return {f"{path.rpartition('/')[0]}/{name}".lstrip("/") for name in named if name}


@lru_cache(maxsize=4096)
def metadata_of(string: str, path: str) -> ArrayMetadata:
    """Parse a ``zarr.json``; cached, since many files share it."""
    return parse_array_metadata(string.encode(), node_path="/" + path)
