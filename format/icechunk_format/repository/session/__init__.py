"""Write sessions: edits, reads of uncommitted changes, and the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.repository.session.committing import OnConflict, Resolve
    from icechunk_format.repository.session.reads import shifted
    from icechunk_format.repository.session.session import WriteSession

__all__ = ["OnConflict", "Resolve", "WriteSession", "shifted"]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {".committing": ["OnConflict", "Resolve"], ".reads": ["shifted"], ".session": ["WriteSession"]},
)
