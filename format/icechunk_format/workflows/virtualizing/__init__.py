"""Makes files of other formats readable as arrays of a repository, by virtual references."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.workflows.virtualizing.result import VirtualizeResult
    from icechunk_format.workflows.virtualizing.virtualize import Archive, virtualize_files

__all__ = ["Archive", "VirtualizeResult", "virtualize_files"]

__getattr__, __dir__ = loaded_on_use(
    __name__, {".result": ["VirtualizeResult"], ".virtualize": ["Archive", "virtualize_files"]}
)
