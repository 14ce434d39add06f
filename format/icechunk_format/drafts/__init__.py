"""Reads and imports repositories of the two drafts that preceded the first release."""

from icechunk_format.drafts.importing import ImportReport, import_draft
from icechunk_format.drafts.model import DraftChunks, DraftNode, DraftSnapshot
from icechunk_format.drafts.repository import DraftRepository, open_draft

__all__ = [
    "DraftChunks",
    "DraftNode",
    "DraftRepository",
    "DraftSnapshot",
    "ImportReport",
    "import_draft",
    "open_draft",
]
