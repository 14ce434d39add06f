"""Fetches the bytes of chunks: native, inline and virtual ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.repository.chunks.source import ChunkSource
    from icechunk_format.repository.chunks.virtual import VirtualResolver
    from icechunk_format.repository.chunks.virtual_url import shown

__all__ = ["ChunkSource", "VirtualResolver", "shown"]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {".source": ["ChunkSource"], ".virtual": ["VirtualResolver"], ".virtual_url": ["shown"]},
)
