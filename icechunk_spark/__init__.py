"""Icechunk repositories as Apache Spark tables."""
