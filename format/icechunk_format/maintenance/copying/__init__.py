"""Copies of a line of versions to another repository."""
