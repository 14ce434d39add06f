"""Computes statistics of zones as Spark jobs: cover, sums, rows of the result."""
