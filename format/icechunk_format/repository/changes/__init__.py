"""Uncommitted changes of a session, and conflicts with the changes of other writers."""
