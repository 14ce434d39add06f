"""Changes branches, tags and settings; one function replaces the ``repo`` object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.repository.state.branch_tip import BranchTip
    from icechunk_format.repository.state.conflict_errors import merge_conflicts
    from icechunk_format.repository.state.races import RaceLost, until_won

__all__ = ["BranchTip", "RaceLost", "merge_conflicts", "until_won"]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".branch_tip": ["BranchTip"],
        ".conflict_errors": ["merge_conflicts"],
        ".races": ["RaceLost", "until_won"],
    },
)
