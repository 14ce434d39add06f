"""Copies a group to a Delta table with Spark's tasks, and reads a table version of the copy."""
