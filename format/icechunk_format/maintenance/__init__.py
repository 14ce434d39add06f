"""Upkeep of whole repositories, without Spark: for repositories that one process can walk through.

``icechunk_spark.maintenance`` has the same functions as Spark jobs, for the others.
"""
