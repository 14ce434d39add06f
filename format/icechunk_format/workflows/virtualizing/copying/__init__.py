"""Copies arrays of files: decodes them, and writes them as chunks of the repository."""
