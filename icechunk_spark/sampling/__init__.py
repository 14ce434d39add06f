"""Samples a repository at the points of a DataFrame: ``icechunk_spark.sample``."""
