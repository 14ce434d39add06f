"""Reads, changes and writes the configuration of a repository."""
