"""Writes DataFrames: planned and in parallel, or staged and written by one process."""
