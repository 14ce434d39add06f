"""Options of reading and writing: declared once, parsed and checked."""

from __future__ import annotations

from icechunk_spark.options.parse import OPTIONS, option_table_markdown

__all__ = ["OPTIONS", "option_table_markdown"]
