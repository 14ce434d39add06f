"""Write sessions: edits, reads of what is not committed yet, and the commit."""
