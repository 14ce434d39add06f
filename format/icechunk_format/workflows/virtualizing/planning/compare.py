"""Compares the headers of files with the header of the dataset.

Rules of this file
------------------
1. The model is the header in the record, or else the most frequent header, so that one different
   file does not cause the refusal of all others.
2. Everything that affects the values must be equal: data type, codecs, chunk shape, fill value,
   dimensions, and the attributes in ``MEANING``. Other attributes may differ; the attributes of the
   model are kept, and the report notes the difference.
3. Lengths may differ along concatenated dimensions only.
4. Times of stored arrays are converted, so their units and data type may differ.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.repository.changes import MISSING, OF_VALUES, PACKING
from icechunk_format.tables.cf import GREGORIAN_CALENDARS, canonical_calendar
from icechunk_format.workflows.virtualizing.scanning.headers import is_time

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.scanning.headers import Header
    from icechunk_format.zarr.zarr_json import ArrayMetadata

MEANING: Final = (
    *(*OF_VALUES, "dtype", "standard_name", "positive", "cell_methods"),
    *("flag_values", "flag_masks", "flag_meanings", "grid_mapping"),
)
"""Attributes that affect the meaning of values."""

_ATTRIBUTE: Final = "the attribute "
_COPYABLE: Final = frozenset(
    {
        "the chunk shape",
        "the codecs (compression, byte order)",
        "the fill value of missing chunks",
        *(f"the attribute {key}" for key in (*MISSING, *PACKING)),
    }
)
_OF_WRITING: Final = ("level", "clevel", "acceleration")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference between a file and the model."""

    array: str | None
    what: str
    is_fatal: bool = True
    advice: str = ""
    is_copyable: bool = False
    """True if the values can be copied instead."""


def differences(
    header: Header, model: Header, *, dims: Iterable[str], stored: Collection[str] = ()
) -> list[Difference]:
    """Return the differences, fatal differences first.

    Chunks and codecs of `stored` arrays are not compared, and their times are converted.
    """
    arrays, others = header.decoded(), model.decoded()
    missing, added = others.keys() - arrays.keys(), arrays.keys() - others.keys()
    found = [Difference(array=path, what="the array is missing") for path in missing]
    found += [Difference(array=path, what="no other file has this array") for path in added]
    for path in sorted(arrays.keys() & others.keys()):
        own, other = arrays[path], others[path]
        if own.raw != other.raw:
            found += _of_arrays(path, own, other, set(dims), path in stored)
    own_groups, groups = dict(header.groups), dict(model.groups)
    for path in sorted(own_groups.keys() & groups.keys()):
        if own_groups[path] != groups[path]:
            names = _unequal(json.loads(own_groups[path]), json.loads(groups[path]))
            what = f"attributes of group /{path} differ ({', '.join(names)})"
            found.append(Difference(array=None, what=what, is_fatal=False))
    return sorted(found, key=lambda item: (not item.is_fatal, item.array or ""))


def kind_of(header: Header, *, dims: Iterable[str], stored: Collection[str]) -> str:
    """Return a key that is equal for headers without fatal differences."""
    concatenated, arrays = set(dims), header.decoded()
    meanings = {path: _meaning(own, concatenated, path in stored) for path, own in arrays.items()}
    return json.dumps(meanings, default=str)


def _of_arrays(
    path: str, own: ArrayMetadata, other: ArrayMetadata, dims: set[str], is_stored: bool
) -> list[Difference]:
    found: list[Difference] = []
    meaning, wanted = (_meaning(document, dims, is_stored) for document in (own, other))
    for name, value in meaning.items():
        if name not in wanted or wanted[name] == value:
            continue
        advice, is_since, shown = "", [False], [value, wanted[name]]
        if name.startswith(_ATTRIBUTE):
            key = name.removeprefix(_ATTRIBUTE)
            shown = [document.attributes.get(key) for document in (own, other)]
            is_since = [key == "units" and is_time(document) for document in (own, other)]
            advice = "; name it in loadable= to convert times" if any(is_since) else ""
        elif name == "the chunk shape":
            shown = [chunk_shape_of(document.raw) for document in (own, other)]
            advice = (
                "; a Zarr array has one chunk shape: rewrite the file with the chunks of the "
                "others, or name the array in loadable= if it is small"
            )
        sentence = f"{name} is {_shown(shown[0])}, and {_shown(shown[1])} elsewhere"
        is_number = all(d.data_type.numpy.kind in "biuf" for d in (own, other))
        is_copyable = name in _COPYABLE or (name == "the type" and is_number)
        is_copyable = not is_stored and (is_copyable or all(is_since))
        if is_copyable:
            advice += "; or copy such files with copy='mismatching'"
        found.append(Difference(array=path, what=sentence, advice=advice, is_copyable=is_copyable))
        if name == "the list of dimensions":
            return found
    for name in _unequal(own.attributes, other.attributes):
        if name not in MEANING:
            sentence = f"the attribute {name} differs"
            found.append(Difference(array=path, what=sentence, is_fatal=False))
    return found


def _meaning(document: ArrayMetadata, dims: set[str], is_stored: bool) -> dict[str, Any]:
    """Return all properties that must be equal, by name in the report."""
    raw, attributes = document.raw, document.attributes
    is_converted = is_stored and is_time(document) and not attributes.keys() & set(PACKING)
    found = {"the list of dimensions": raw.get("dimension_names")}
    if not is_converted:
        found["the type"] = raw["data_type"]
    names = document.dimension_names or [None] * document.ndim
    for axis, (dim, size) in enumerate(zip(names, document.shape, strict=True)):
        if dim not in dims:
            named = f"dimension {dim!r}" if dim is not None else f"axis {axis}"
            found[f"the length of {named}"] = size
    if not is_stored:
        chunks = chunk_shape_of(raw)
        found["the chunk shape"] = chunks[1:] if can_split(raw, dims) else chunks
        found["the codecs (compression, byte order)"] = _decoding(raw["codecs"])
        found["the fill value of missing chunks"] = raw.get("fill_value")
    for key in MEANING:
        if not (is_converted and key in MISSING):
            found[f"{_ATTRIBUTE}{key}"] = attributes.get(key)
    if is_converted:
        calendar = str(attributes.get("calendar", "standard"))
        calendar = canonical_calendar(calendar) or calendar
        is_gregorian = calendar in GREGORIAN_CALENDARS
        found[f"{_ATTRIBUTE}units"] = "since"
        found[f"{_ATTRIBUTE}calendar"] = "standard" if is_gregorian else calendar
    return found


def can_split(document: dict[str, Any], dims: Collection[str]) -> bool:
    """Return True if chunks can be split: unencoded, and concatenated along the first axis."""
    names = document.get("dimension_names") or [None]
    is_plain = [codec.get("name") for codec in document["codecs"]] == ["bytes"]
    chunks = chunk_shape_of(document)
    return is_plain and isinstance(chunks, list) and bool(chunks) and names[0] in dims


def _decoding(codecs: Any) -> Any:
    """Return codecs without settings that affect only writing."""
    if isinstance(codecs, dict):
        return {k: _decoding(v) for k, v in codecs.items() if k not in _OF_WRITING}
    return [_decoding(codec) for codec in codecs] if isinstance(codecs, list) else codecs


def chunk_shape_of(document: Mapping[str, Any]) -> Any:
    """Return the chunk shape of a ``zarr.json``, or a grid without one."""
    grid = document["chunk_grid"]
    return grid.get("configuration", {}).get("chunk_shape", grid)


def _unequal(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [k for k in sorted(one.keys() | other.keys()) if one.get(k) != other.get(k)]


def _shown(value: Any) -> str:
    sentence = json.dumps(value, default=str)
    return sentence if len(sentence) <= 160 else sentence[:157] + "..."
