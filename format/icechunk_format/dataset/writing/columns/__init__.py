"""Columns of a write: which arrays they become, and which coordinates they bring."""
