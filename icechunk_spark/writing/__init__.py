"""Writes DataFrames: in parallel as planned, or staged and written by one process."""
