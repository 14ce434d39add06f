"""Applies xarray functions to blocks on Spark's executors."""
