"""Deletes labels of a dimension, or the values of a region."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.workflows.deleting.delete import (
        DeleteRequest,
        DeleteResult,
        delete_selected,
    )

__all__ = ["DeleteRequest", "DeleteResult", "delete_selected"]

__getattr__, __dir__ = loaded_on_use(__name__, {".delete": __all__})
