"""Copies arrays of files: decodes them, and writes chunks of the repository."""
