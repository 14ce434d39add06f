"""Verification of a repository, in one process or in parts, and what it finds."""
