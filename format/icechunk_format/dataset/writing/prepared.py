"""``PreparedWrite``: all that is known of a write before any row is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icechunk_format.dataset.table.variable import Variable
from icechunk_format.dataset.writing.options import WriteOptions
from icechunk_format.dataset.writing.part import Destination
from icechunk_format.spec.node_path import ROOT, NodePath

if TYPE_CHECKING:
    from icechunk_format.dataset.cf.encode import VariableEncoder
    from icechunk_format.dataset.writing.columns.new_arrays import NewArray
    from icechunk_format.dataset.writing.columns.source import SourceColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingArray:
    """A column that is written to an array of the repository."""

    column: SourceColumn
    variable: Variable
    encoder: VariableEncoder

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions of the array."""
        return self.variable.dims

    @property
    def path(self) -> str:
        """Path of the array."""
        return self.variable.path


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedWrite:
    """A checked write, with the array of each column; see ``prepare_write``."""

    destination: Destination
    options: WriteOptions
    group: NodePath
    dims: tuple[str, ...]
    """The dimension columns, in order; none in the layouts of chunks."""
    columns: Mapping[str, SourceColumn]
    targets: Mapping[str, ExistingArray | NewArray]
    """By column: its array. Dimensions without labels have none, nor has a layout of chunks."""
    kept: Mapping[str, Variable]
    """The arrays of the group that stay, by name."""
    replaced: Mapping[str, Variable]
    """The arrays of the group that the write replaces, by name."""
    missing_groups: tuple[str, ...]
    """Groups that have to be created, outermost first."""

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
    def place(self) -> str:
        """The branch and the repository, for messages."""
        return f"branch {self.options.branch!r} of {self.destination.location}"

    def array_path(self, name: str) -> str:
        """Return the path of an array of the group."""
        return path_in(self.group, name)


def path_in(group: NodePath, name: str) -> str:
    """Return the path of an array of a group."""
    return f"{'' if group == ROOT else group}/{name}"
