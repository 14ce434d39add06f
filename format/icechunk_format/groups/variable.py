"""Describes an array as xarray does: a name, dimensions and attributes.

Rules of this file
------------------
1. Names, shapes and dimensions come from the snapshot. The array's metadata document is parsed on
   demand, so that one damaged array does not make its group unreadable.
2. An unnamed dimension is ``dim_0``, ``dim_1``, ... by its position. Such a name may have different
   sizes in two arrays, so two dimensions are the same only if name and size agree.
3. A dimension coordinate is a one-dimensional array with the name of its dimension. Other
   coordinates are those that a ``coordinates`` attribute lists, those that CF attributes point to
   (bounds, climatology, grid mapping, cell measures, formula terms), and the positions and
   connections of a UGRID mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from icechunk_format.encoding import node_path
from icechunk_format.encoding.ids import NodeId
from icechunk_format.encoding.snapshot.file import NodeSnapshot, Snapshot
from icechunk_format.errors import FormatError, InvalidInputError
from icechunk_format.zarr.codecs.chain import ChunkCodecs
from icechunk_format.zarr.zarr_json import ArrayMetadata, parse_array_metadata

Dimension = tuple[str, int]
"""A dimension: its name and its size."""

_NAME_LISTS = ("coordinates", "bounds", "climatology", "grid_mapping")
_TERM_LISTS = ("grid_mapping", "cell_measures", "formula_terms")
# UGRID: face_coordinates, edge_node_connectivity and their like.
_NAME_LIST_ENDINGS = ("_coordinates", "_connectivity")


class Variable:
    """One array of a group; ``name`` is the last part of its path."""

    def __init__(self, node: NodeSnapshot) -> None:
        if node.array is None:
            raise InvalidInputError(f"{node.path} is a group, not an array", node_path=node.path)
        self.node = node
        self.array = node.array
        self.path = str(node.path)
        self.name = node_path.name(node.path)
        self.shape: tuple[int, ...] = tuple(node.array.shape)
        given = node.array.dimension_names or (None,) * len(self.shape)
        self.dims: tuple[str, ...] = tuple(
            given_name or f"dim_{axis}" for axis, given_name in enumerate(given)
        )

    def __repr__(self) -> str:
        sizes = ", ".join(f"{dim}={size}" for dim, size in self.dimensions)
        return f"<Variable {self.path} ({sizes})>"

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Names and sizes together, in array order."""
        return tuple(zip(self.dims, self.shape, strict=True))

    @property
    def is_dimension_coordinate(self) -> bool:
        """True if this array holds the labels of a dimension."""
        return self.dims == (self.name,)

    @cached_property
    def metadata(self) -> ArrayMetadata:
        """The parsed ``zarr.json`` of the array; raises FormatError if it is damaged."""
        return parse_array_metadata(self.node.user_data, node_path=self.node.path)

    @cached_property
    def codecs(self) -> ChunkCodecs:
        """The codecs of chunks; raises UnsupportedError if one is not available."""
        return self.metadata.chunk_codecs()

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The user attributes; empty if the document is damaged (``metadata`` raises the error)."""
        try:
            return self.metadata.attributes
        except FormatError:
            return {}

    @property
    def has_repeated_dimension(self) -> bool:
        """True if two axes have one dimension name; such an array cannot be a table."""
        return len(set(self.dims)) < len(self.dims)


def arrays_in(snapshot: Snapshot, group: str) -> dict[str, Variable]:
    """Return the arrays directly in a group by name, in the order of their paths."""
    found = [Variable(node) for node in snapshot.children(group) if node.array is not None]
    return {variable.name: variable for variable in found}


def array_at(snapshot: Snapshot, path: str, node_id: NodeId | None = None) -> Variable | None:
    """Return the array at a path; None if the path has no array, or one with another id."""
    node = snapshot.node(path)
    if node is None or node.array is None or node_id not in (None, node.id):
        return None
    return Variable(node)


def coordinate_names(
    variables: Iterable[Variable], group_attributes: Mapping[str, Any]
) -> frozenset[str]:
    """Return the names of coordinate arrays other than dimension coordinates."""
    found: set[str] = set()
    for attributes in (group_attributes, *(v.attributes for v in variables)):
        for key, string in attributes.items():
            if (key in _NAME_LISTS or key.endswith(_NAME_LIST_ENDINGS)) and isinstance(string, str):
                found.update(string.replace(":", " ").split())
        for key in _TERM_LISTS:
            string = attributes.get(key)
            if isinstance(string, str):
                # "area: cell_area volume: cell_volume": every second word names an array.
                found.update(word for word in string.split() if not word.endswith(":"))
    return frozenset(found)
