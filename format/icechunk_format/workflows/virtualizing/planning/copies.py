"""Chooses the documents of copied arrays from the options ``chunks`` and ``encoding``.

Rules of this file
------------------
1. Without an encoding, copies of all files keep stored values bit by bit if all files have the same
   packing, and become float64 otherwise. Copies in an array with references have the packing of the
   references.
2. Values are rounded only to a packing or a data type given in the call.
3. The same call gives the same documents, so that it can append.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from icechunk_format.errors import InvalidInputError
from icechunk_format.names import check_names
from icechunk_format.repository.changes import MISSING, PACKING
from icechunk_format.tables.cf import attribute_decoder, missing_value
from icechunk_format.tables.writing import CF_KEYS, codecs_of, described_attributes, named_type
from icechunk_format.workflows.virtualizing.planning.compare import chunk_shape_of
from icechunk_format.zarr.codecs.build import default_codecs
from icechunk_format.zarr.fill_values import default_fill_value, encode_fill_value
from icechunk_format.zarr.zarr_json import ArrayMetadata, dump_document, parse_array_metadata

_KEYS: Final = ("dtype", "compressors", *CF_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """The options of a call that copies."""

    which: Literal["all", "mismatching"]
    chunks: Mapping[str, int] = field(default_factory=dict)
    """Chunk lengths by dimension; -1 is the whole length, if the dimension is not concatenated."""
    encoding: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Encodings by name or path of an array, as for writes."""

    def documents(
        self, found: Mapping[str, Sequence[ArrayMetadata]], dims: Sequence[str]
    ) -> dict[str, ArrayMetadata]:
        """Return the documents of copied arrays.

        Parameters
        ----------
        found
            By path: the document of the model, followed by those of other files.
        dims
            The concatenated dimensions.
        """
        inside = {d for own, *_ in found.values() for d in own.dimension_names or () if d}
        names = {path.rpartition("/")[2] for path in found} | found.keys()
        check_names("chunks", "dimension", self.chunks, sorted(inside))
        check_names("encoding", "array", self.encoding, sorted(names))
        for given in self.encoding.values():
            check_names("encoding", "key", given, sorted(_KEYS))
        for dim, size in self.chunks.items():
            if size < 1 and (size != -1 or dim in dims):
                raise InvalidInputError(
                    f"chunks: {dim} is {size}; give a number of elements from 1, or -1 for all of a"
                    " dimension that is not concatenated",
                    dimension=dim,
                )
        return {path: self._document(path, own) for path, own in found.items()}

    def encoding_of(self, path: str) -> dict[str, Any]:
        """Return the given encoding of an array."""
        return dict(self.encoding.get(path) or self.encoding.get(path.rpartition("/")[2]) or {})

    def rounds(self, path: str) -> bool:
        """Return True if the packing or the data type of an array is given."""
        return bool(self.encoding_of(path).keys() & {"dtype", "scale_factor", "add_offset"})

    def _document(self, path: str, files: Sequence[ArrayMetadata]) -> ArrayMetadata:
        document, name = files[0], path.rpartition("/")[2]
        given = self.encoding_of(path)
        is_free = self.which == "all" and not given.keys() & {"dtype", *CF_KEYS}
        if is_free and len({packing_of(own) for own in files}) > 1:
            given["dtype"] = "float64"
        raw, data_type = dict(document.raw), document.data_type
        attributes = dict(document.attributes)
        if given.keys() & {"dtype", *PACKING}:
            data_type = named_type(given.get("dtype") or data_type.to_json(), name)
            for key in (*PACKING, *(MISSING if data_type != document.data_type else ())):
                attributes.pop(key, None)
        attributes = described_attributes(given, data_type, name, before=attributes)
        raw |= {"data_type": data_type.to_json(), "attributes": attributes}
        if data_type != document.data_type or given.keys() & {*MISSING}:
            decoder = attribute_decoder(attributes, data_type, name=name)
            fill = missing_value(attributes, decoder, data_type)
            fill = default_fill_value(data_type) if fill is None else fill
            raw["fill_value"] = encode_fill_value(fill, data_type)
        if "compressors" in given:
            raw["codecs"] = codecs_of(given["compressors"], data_type, name)
        elif self.which == "all" or data_type != document.data_type:
            raw["codecs"] = default_codecs(data_type)
        sizes = zip(
            document.dimension_names or (None,) * document.ndim,
            document.shape,
            chunk_shape_of(document.raw),
            strict=True,
        )
        wanted = [(self.chunks.get(dim or "", chunk), size) for dim, size, chunk in sizes]
        chunks = [max(1, size) if chunk == -1 else chunk for chunk, size in wanted]
        grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
        string = dump_document(raw | {"chunk_grid": grid})
        return parse_array_metadata(string, node_path=document.node_path)


def packing_of(document: ArrayMetadata) -> tuple[str, ...]:
    """Return the properties that determine the values of stored numbers."""
    keys = (*PACKING, *MISSING, "units", "calendar", "dtype")
    is_time = " since " in str(document.attributes.get("units"))
    found = [document.attributes.get(k) for k in (keys if is_time else (*keys[:5], "dtype"))]
    # Compared as strings, since NaN differs from itself.
    return (str(document.data_type.numpy.newbyteorder("=")), *map(repr, found))
