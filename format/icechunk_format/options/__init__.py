"""Options of reading and writing: declared once, parsed and checked."""

from __future__ import annotations

from icechunk_format.options.parse import OPTIONS

__all__ = ["OPTIONS"]
