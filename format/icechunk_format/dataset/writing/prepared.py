"""What is known of a write before a look at any row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icechunk_format.spec.node_path import ROOT, NodePath

if TYPE_CHECKING:
    from collections.abc import Mapping

    from icechunk_format.dataset.cf.encode import VariableEncoder
    from icechunk_format.dataset.table.variable import Variable
    from icechunk_format.dataset.writing.columns.new_arrays import NewArray
    from icechunk_format.dataset.writing.columns.source import SourceColumn
    from icechunk_format.dataset.writing.options import WriteOptions
    from icechunk_format.dataset.writing.result import WriteResult
    from icechunk_format.repository.chunks.source import ChunkSource
    from icechunk_format.repository.files.manifest_files import ManifestFormat
    from icechunk_format.spec.ids import SnapshotId
    from icechunk_format.storage.location import Location


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingArray:
    """A column on its way to an array that is there.

    Parameters
    ----------
    column
        The column.
    variable
        The array.
    encoder
        Turns the one into the other.
    """

    column: SourceColumn
    variable: Variable
    encoder: VariableEncoder

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions of the array."""
        return self.variable.dims

    @property
    def path(self) -> str:
        """Where the array is."""
        return self.variable.path


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWrite:
    """A write that may begin; see ``prepare_write``.

    Parameters
    ----------
    location, options
        As given.
    group
        The group that is written.
    dims
        The dimension columns, in order.
    columns
        All columns by name.
    targets
        By column: its array, old or new. Dimensions without labels have none.
    kept
        The arrays of the group that stay, by name.
    replaced
        The arrays of the group that the write replaces, by name.
    base
        The version that the write starts from; None where there is no repository yet.
    missing_groups
        Groups that have to be created, outermost first.
    manifest_format
        How manifests are written.
    chunk_source
        How to fetch chunks of the base.
    skipped
        The result, where there is nothing to do.
    """

    location: Location
    options: WriteOptions
    group: NodePath = ROOT
    dims: tuple[str, ...] = ()
    columns: Mapping[str, SourceColumn] = field(default_factory=dict)
    targets: Mapping[str, ExistingArray | NewArray] = field(default_factory=dict)
    kept: Mapping[str, Variable] = field(default_factory=dict)
    replaced: Mapping[str, Variable] = field(default_factory=dict)
    base: SnapshotId | None = None
    missing_groups: tuple[str, ...] = ()
    manifest_format: ManifestFormat
    chunk_source: ChunkSource
    skipped: WriteResult | None = None

    @property
    def variables(self) -> tuple[str, ...]:
        """The columns that are not dimensions."""
        return tuple(name for name in self.columns if name not in self.dims)

    @property
    def group_attributes(self) -> Mapping[str, Any]:
        """The attributes of the group that the rows were read from."""
        found = (column.group_attributes for column in self.columns.values())
        return next(filter(None, found), {})

    @property
    def is_skipped(self) -> bool:
        """Whether there is nothing to do; ``skipped`` says why."""
        return self.skipped is not None

    def array_path(self, name: str) -> str:
        """Return the path of an array of the group."""
        return f"{'' if self.group == ROOT else self.group}/{name}"
