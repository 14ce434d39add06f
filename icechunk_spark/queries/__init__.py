"""Reads as DataFrames, and a rule of Spark's optimizer that plans them again for each query."""
