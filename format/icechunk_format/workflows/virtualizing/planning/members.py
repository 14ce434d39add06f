"""What a plan is made of: how arrays are laid out, and the part of each file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from icechunk_format.arrays.zarr_json import ArrayMetadata
from icechunk_format.workflows.virtualizing.report import REFUSED, Row
from icechunk_format.workflows.virtualizing.scanning.headers import Header, coordinate_paths
from icechunk_format.workflows.virtualizing.scanning.scan import ScannedFile, ScannedPiece

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.planning.arrange import Along, Placed


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How arrays of files become arrays of the repository.

    Parameters
    ----------
    dims, new_dims
        The concatenated dimensions; those that files do not have.
    model
        The header that files are compared with.
    loaded, spread
        Arrays whose values are stored; scalars that become arrays along the first dimension.
    """

    dims: tuple[str, ...]
    new_dims: tuple[str, ...] = ()
    model: Header = field(default_factory=Header)
    loaded: frozenset[str] = frozenset()
    spread: frozenset[str] = frozenset()

    @cached_property
    def documents(self) -> Mapping[str, ArrayMetadata]:
        """The arrays of the model by path."""
        return self.model.documents()

    @cached_property
    def stored(self) -> frozenset[str]:
        """The arrays whose values are stored, and not references."""
        return frozenset(path for path in self.documents if self.is_stored(path))

    def with_documents(self, documents: Mapping[str, ArrayMetadata]) -> Layout:
        """Return the layout with other metadata of some arrays."""
        arrays = dict(self.model.arrays)
        arrays |= {p: json.dumps(own.raw, sort_keys=True) for p, own in documents.items()}
        return replace(self, model=replace(self.model, arrays=tuple(sorted(arrays.items()))))

    def added_dims(self, path: str) -> tuple[str, ...]:
        """Return the dimensions that an array gets before its own."""
        document = self.documents[path]
        if document.ndim == 0:
            name = path.rpartition("/")[2]
            if name in self.new_dims:
                return (name,)
            return self.dims[:1] if path in self.spread else ()
        is_data = path not in coordinate_paths(self.documents)
        has_own = bool(self.own_dims(path))
        is_concatenated = has_own or not (set(self.dims) - set(self.new_dims))
        return self.new_dims if is_data and is_concatenated else ()

    def own_dims(self, path: str) -> tuple[str, ...]:
        """Return the concatenated dimensions that an array has in files."""
        return tuple(d for d in self.documents[path].dimension_names or () if d in self.dims)

    def is_stored(self, path: str) -> bool:
        """Whether values of an array are stored, and not references."""
        return path in self.loaded or (
            self.documents[path].ndim == 0 and bool(self.added_dims(path))
        )


@dataclass(slots=True, kw_only=True)
class Member:
    """A file that was scanned, and its part in the plan."""

    row: Row
    scanned: ScannedFile
    piece: int
    placed: Placed | None = None
    is_changed: bool = False
    """Whether the repository has another state of the file at the same place."""
    has_grown: bool = False
    """Whether the repository has a shorter state of the file, which begins at the same place."""
    is_empty: bool = False
    """Whether it has no element along a concatenated dimension."""

    def values_of(self, path: str, pieces: Sequence[ScannedPiece]) -> NDArray[Any]:
        """Return the values of an array that is stored, as the file has them."""
        values = self.scanned.values.get(path)
        if values is None:
            values = pieces[self.piece].constants[self.scanned.digests[path]]
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """Which files are taken, and where they lie.

    Parameters
    ----------
    taken
        New and changed files with their places.
    files
        All files with their places, those of the repository included.
    sizes
        Length of each concatenated dimension.
    old_starts
        By URL: the places that files of the repository had.
    splits
        By array: the chunk length along the first axis, where chunks are cut.
    """

    layout: Layout
    rows: list[Row]
    taken: list[Member]
    files: list[Placed]
    sizes: Along
    old_starts: Mapping[str, Along]
    splits: Mapping[str, int]
    digests: dict[str, str]

    @property
    def is_refused(self) -> bool:
        """Whether a file was refused."""
        return any(row.status == REFUSED for row in self.rows)
