"""Deletes labels and regions on Spark's executors."""
