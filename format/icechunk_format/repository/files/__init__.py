"""Fetches, decodes, caches and stores the files of a repository."""
