"""Runs functions of xarray over blocks on Spark's executors."""
