"""Rechunks arrays on Spark's executors."""
