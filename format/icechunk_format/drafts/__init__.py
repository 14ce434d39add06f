"""Two drafts of the format from before its first release, read-only and as a source to import."""
