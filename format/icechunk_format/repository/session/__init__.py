"""Write sessions: edits, reads of uncommitted changes, and the commit."""
