"""Names of tables: catalog files and folders of repositories, and the state of their tables."""

from __future__ import annotations

from icechunk_format.tables.catalog.entries import Entry, entries_of
from icechunk_format.tables.catalog.facts import TableFacts, checked_entries, facts_of
from icechunk_format.tables.catalog.reading import read_catalog

__all__ = ["Entry", "TableFacts", "checked_entries", "entries_of", "facts_of", "read_catalog"]
