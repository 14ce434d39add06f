"""Compares the headers of files: what keeps a file from being one dataset with the others.

Rules of this file
------------------
1. Files are compared with a model: the arrays of the repository, or the header that most of the
   files have, so that one odd file does not refuse all others.
2. What decides how stored numbers are read has to agree: data type, codecs, chunk shape, fill
   value, dimensions, and the attributes of ``MEANING``. Other attributes may differ; those of the
   model are kept, and the report says so.
3. Lengths may differ along concatenated dimensions only.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.scanning.headers import Header

MEANING: Final = (
    "units",
    "calendar",
    "scale_factor",
    "add_offset",
    "_FillValue",
    "missing_value",
    "_Unsigned",
    "dtype",
    "standard_name",
    "positive",
    "cell_methods",
    "flag_values",
    "flag_masks",
    "flag_meanings",
    "grid_mapping",
)
"""Attributes without which numbers mean something else."""

_TIME: Final = ("units", "calendar")
_OF_WRITING: Final = ("level", "clevel", "acceleration")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs between a file and the model."""

    array: str | None
    what: str
    is_fatal: bool = True


def differences(
    header: Header,
    model: Header,
    *,
    dims: Iterable[str],
    loaded: Collection[str] = (),
) -> list[Difference]:
    """Return what differs, the fatal first.

    Parameters
    ----------
    dims
        Concatenated dimensions.
    loaded
        Arrays whose values are stored: chunks and codecs do not matter, times are converted.
    """
    mine, theirs = dict(header.arrays), dict(model.arrays)
    missing, added = theirs.keys() - mine.keys(), mine.keys() - theirs.keys()
    found = [Difference(array=path, what="the array is missing") for path in missing]
    found += [Difference(array=path, what="no other file has this array") for path in added]
    for path in sorted(mine.keys() & theirs.keys()):
        if mine[path] != theirs[path]:
            found += _of_arrays(
                path,
                json.loads(mine[path]),
                json.loads(theirs[path]),
                set(dims),
                path in loaded,
            )
    own, others = dict(header.groups), dict(model.groups)
    for path in sorted(own.keys() & others.keys()):
        if own[path] != others[path]:
            names = _unequal(json.loads(own[path]), json.loads(others[path]))
            what = f"attributes of group /{path} differ ({', '.join(names)})"
            found.append(Difference(array=None, what=what, is_fatal=False))
    return sorted(found, key=lambda item: (not item.is_fatal, item.array or ""))


def _of_arrays(
    path: str,
    mine: dict[str, Any],
    theirs: dict[str, Any],
    dims: set[str],
    is_loaded: bool,
) -> list[Difference]:
    found: list[Difference] = []

    def differs(name: str, own: Any, other: Any, advice: str = "") -> None:
        text = f"{name} is {_shown(own)}, and {_shown(other)} elsewhere{advice}"
        found.append(Difference(array=path, what=text))

    own_attributes, attributes = mine.get("attributes") or {}, theirs.get("attributes") or {}
    is_time = is_loaded and _is_time(own_attributes) and _is_time(attributes)
    for key, name in (("dimension_names", "the list of dimensions"), ("data_type", "the type")):
        if mine.get(key) != theirs.get(key) and not (is_time and key == "data_type"):
            differs(name, mine.get(key), theirs.get(key))
            return found
    names = mine.get("dimension_names") or [None] * len(mine["shape"])
    chunks = [_chunks(document) for document in (mine, theirs)]
    for axis, dim in enumerate(names):
        own, other = mine["shape"][axis], theirs["shape"][axis]
        if own != other and dim not in dims:
            differs(f"the length of dimension {dim!r}", own, other)
    if (
        chunks[0] != chunks[1]
        and not found
        and not is_loaded
        and not _can_split(mine, theirs, dims)
    ):
        differs(
            "the chunk shape",
            chunks[0],
            chunks[1],
            "; a Zarr array has one chunk shape: rewrite the file with the chunks of the others, or"
            " name the array in loadable= if it is small",
        )
    if _decoding(mine["codecs"]) != _decoding(theirs["codecs"]) and not is_loaded:
        differs("the codecs (compression, byte order)", mine["codecs"], theirs["codecs"])
    if mine.get("fill_value") != theirs.get("fill_value") and not is_loaded:
        differs("the fill value of missing chunks", mine["fill_value"], theirs["fill_value"])
    for name in _unequal(own_attributes, attributes):
        own, other = own_attributes.get(name), attributes.get(name)
        if name in _TIME and is_time:
            continue
        if name in MEANING:
            is_since = name == "units" and " since " in f"{own}{other}"
            advice = "; name it in loadable= to convert times" if is_since else ""
            differs(f"the attribute {name}", own, other, advice)
        else:
            text = f"the attribute {name} differs"
            found.append(Difference(array=path, what=text, is_fatal=False))
    return found


def can_split(document: dict[str, Any], dims: Collection[str]) -> bool:
    """Whether chunks can be cut along the first axis: it is concatenated, nothing is encoded."""
    names = document.get("dimension_names") or [None]
    is_plain = [codec.get("name") for codec in document["codecs"]] == ["bytes"]
    chunks = _chunks(document)
    return is_plain and isinstance(chunks, list) and bool(chunks) and names[0] in dims


def _can_split(mine: dict[str, Any], theirs: dict[str, Any], dims: Collection[str]) -> bool:
    is_possible = can_split(mine, dims) and can_split(theirs, dims)
    return is_possible and bool(_chunks(mine)[1:] == _chunks(theirs)[1:])


def _is_time(attributes: dict[str, Any]) -> bool:
    return " since " in str(attributes.get("units"))


def _decoding(codecs: Any) -> Any:
    """Return codecs without what only matters when chunks are written."""
    if isinstance(codecs, dict):
        return {k: _decoding(v) for k, v in codecs.items() if k not in _OF_WRITING}
    return [_decoding(codec) for codec in codecs] if isinstance(codecs, list) else codecs


def _chunks(document: dict[str, Any]) -> Any:
    grid = document["chunk_grid"]
    return grid.get("configuration", {}).get("chunk_shape", grid)


def _unequal(mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    return [k for k in sorted(mine.keys() | theirs.keys()) if mine.get(k) != theirs.get(k)]


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 160 else text[:157] + "..."
