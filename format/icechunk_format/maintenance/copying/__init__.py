"""Copies the history of a branch or tag to another repository."""
