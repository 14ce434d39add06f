"""Prepares references of Kerchunk for VirtualiZarr, which ignores parts of their format.

What VirtualiZarr would read as other values, or leave out, is converted or refused:

===========================================  ===================================================
references                                   result
===========================================  ===================================================
chunks in the order of Fortran               a codec ``transpose``
keys of chunks with the separator ``/``      keys with ``.``
arrays of groups below the root              arrays of their group
templates of plain names; version 0          expanded
templates of expressions, ``gen``,           refused
malformed keys and references
===========================================  ===================================================
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from icechunk_format.errors import InvalidInputError, UnsupportedError

_AGAIN: Final = "make the references again"
# VirtualiZarr holds a path, an offset and a length for each chunk of the grid, referenced or not.
_MOST_CHUNKS: Final = 2**27
_TEMPLATE: Final = re.compile(r"\{\{(.*?)\}\}")


def kerchunk_groups(data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path of each group, and references of its own arrays, in Zarr v2.

    References in Zarr v3 are yielded whole, once for each group.
    """
    refs = _references(data)
    if any(key == "zarr.json" or key.endswith("/zarr.json") for key in refs):
        for key in refs:
            is_document = key.rpartition("/")[2] == "zarr.json"
            if is_document and _document(refs, key).get("node_type") == "group":
                yield key.rpartition("/")[0], refs
        return
    if ".zarray" in refs:
        raise UnsupportedError(
            "its root is an array, and only groups of arrays are supported; make references of "
            "a group that has the array"
        )
    arrays: dict[str, dict[str, Any]] = {
        key[: -len("/.zarray")]: {} for key in refs if key.endswith("/.zarray")
    }
    groups: dict[str, dict[str, Any]] = {"": {}}
    for path in [key[: -len("/.zgroup")] for key in refs if key.endswith("/.zgroup")]:
        if path not in arrays:
            groups.setdefault(path, {})
    for path in arrays:
        groups.setdefault(path.rpartition("/")[0], {})
    for key, value in refs.items():
        path = key.rpartition("/")[0]
        while path and path not in arrays and path.rpartition("/")[2].isdigit():
            path = path.rpartition("/")[0]
        if path in arrays and not key[len(path) + 1 :].startswith("."):
            arrays[path][key[len(path) + 1 :]] = value
    for path, chunks in arrays.items():
        found = _array_references(refs, path, chunks)
        name = path.rpartition("/")[2]
        inner = {f"{name}/{key}": value for key, value in found.items()}
        groups[path.rpartition("/")[0]].update(inner)
    for path, own in groups.items():
        attributes = f"{path}/.zattrs".lstrip("/")
        own[".zgroup"] = '{"zarr_format": 2}'
        if attributes in refs:
            own[".zattrs"] = json.dumps(_document(refs, attributes))
        yield path, own


def fortran_arrays(documents: Mapping[str, Any]) -> set[str]:
    """Return the paths of arrays whose chunks are in the order of Fortran."""
    keys = [key for key in documents if key.endswith("/.zarray")]
    return {
        key[: -len("/.zarray")] for key in keys if _document(documents, key).get("order") == "F"
    }


def transposed(json_document: str) -> str:
    """Return a ``zarr.json`` whose chunks are in the order of Fortran."""
    document = json.loads(json_document)
    order = list(range(len(document["shape"])))[::-1]
    if len(order) > 1:
        codec = {"name": "transpose", "configuration": {"order": order}}
        document["codecs"] = [codec, *document["codecs"]]
    return json.dumps(document, sort_keys=True)


def _references(data: bytes) -> dict[str, Any]:
    """Return the references by key, with their templates expanded."""
    try:
        document = json.loads(data)
    except ValueError as error:
        raise InvalidInputError(f"it is no JSON ({error}); {_AGAIN}") from error
    if not isinstance(document, dict):
        raise InvalidInputError(f"its JSON is a {type(document).__name__}, no object; {_AGAIN}")
    refs = document.get("refs") if "refs" in document or "version" in document else document
    if not isinstance(refs, dict):
        raise InvalidInputError(
            f"its field 'refs' is a {type(refs).__name__}, no object of keys; {_AGAIN}"
        )
    if document is not refs and document.get("gen"):
        raise UnsupportedError(
            "its field 'gen' generates references, which is not supported; write the file again "
            "with every reference below 'refs'"
        )
    templates = document.get("templates") if document is not refs else None
    return {key: _expanded(value, templates or {}, key) for key, value in refs.items()}


def _expanded(value: Any, templates: Mapping[str, Any], key: str) -> Any:
    if not (isinstance(value, list) and value and isinstance(value[0], str)):
        return value
    if "{{" not in value[0] or not templates:
        return value

    def of(match: re.Match[str]) -> str:
        found = templates.get(match[1].strip())
        if not isinstance(found, str) or "{{" in found:
            raise UnsupportedError(
                f"reference {key!r} has the template {match[0]!r}, and only names of 'templates' "
                "that are plain text are supported; write the file again with the whole URLs"
            )
        return found

    return [_TEMPLATE.sub(of, value[0]), *value[1:]]


def _document(refs: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = refs[key]
    try:
        found = value if isinstance(value, dict) else json.loads(value)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"reference {key!r} is no JSON ({error}); {_AGAIN}") from error
    if not isinstance(found, dict):
        raise InvalidInputError(f"reference {key!r} is {found!r}, no JSON object; {_AGAIN}")
    return found


def _array_references(
    refs: Mapping[str, Any], path: str, chunks: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the references of one array, with keys of chunks as VirtualiZarr expects them."""
    document = _document(refs, f"{path}/.zarray")
    attributes = _document(refs, f"{path}/.zattrs") if f"{path}/.zattrs" in refs else {}
    shape, edges = (_lengths(document, name, path) for name in ("shape", "chunks"))
    if len(shape) != len(edges):
        raise InvalidInputError(
            f"array {path!r} has the shape {shape} and the chunks {edges}, whose numbers of "
            f"dimensions differ; {_AGAIN}"
        )
    dims = attributes.get("_ARRAY_DIMENSIONS", [] if not shape else None)
    if not isinstance(dims, list) or len(dims) != len(shape):
        raise InvalidInputError(
            f"array {path!r} has the attribute _ARRAY_DIMENSIONS={dims!r}, which has to name its "
            f"{len(shape)} dimensions; {_AGAIN}"
        )
    if any(length and not edge for length, edge in zip(shape, edges, strict=True)):
        raise InvalidInputError(f"array {path!r} has chunks of length 0: {edges}; {_AGAIN}")
    grid = [-(-length // max(1, edge)) for length, edge in zip(shape, edges, strict=True)]
    if math.prod(grid) > _MOST_CHUNKS:
        raise UnsupportedError(
            f"it has {math.prod(grid):,} chunks, and at most {_MOST_CHUNKS:,} are supported; make "
            "references with larger chunks, or of a part of the array",
            array=path,
        )
    if not shape and not chunks:
        raise UnsupportedError(
            "it is a scalar without a reference; leave it out, or make a reference to its value",
            array=path,
        )
    separator = document.get("dimension_separator") or "."
    found: dict[str, Any] = {
        ".zarray": json.dumps(document),
        ".zattrs": json.dumps({**attributes, "_ARRAY_DIMENSIONS": dims}),
    }
    for key, value in chunks.items():
        parts = key.split(separator)
        is_right = len(parts) == max(1, len(shape)) and all(
            part.isdecimal() and int(part) < size
            for part, size in zip(parts, grid or [1], strict=False)
        )
        if not is_right:
            raise InvalidInputError(
                f"array {path!r} has a reference {key!r}, and keys of its chunks are "
                f"{len(shape)} numbers below {grid}, separated by {separator!r}; {_AGAIN}"
            )
        is_missing = isinstance(value, list) and len(value) == 1 and value[0] != value[0]
        if not is_missing:  # [NaN] marks a missing chunk
            found[".".join(parts)] = _checked(value, path, key)
    return found


def _lengths(document: Mapping[str, Any], name: str, path: str) -> list[int]:
    found = document.get(name)
    if not isinstance(found, list) or not all(type(n) is int and n >= 0 for n in found):
        raise InvalidInputError(
            f"array {path!r} has {name}={found!r}, which has to be a list of lengths; {_AGAIN}"
        )
    return found


def _checked(value: Any, path: str, key: str) -> Any:
    is_place = isinstance(value, list) and len(value) in (1, 3) and isinstance(value[0], str)
    if is_place:
        is_place = all(type(number) is int and number >= 0 for number in value[1:])
    if is_place or isinstance(value, str):
        return value
    raise InvalidInputError(
        f"chunk {key!r} of array {path!r} has the reference {value!r}, which has to be "
        f"[URL, offset, length], [URL], or a string of its bytes; {_AGAIN}"
    )
