"""Reads and prints the history of a repository, with its graph."""
