"""Copies a group into a Delta table with Spark's tasks, and reads a version of the copy."""
