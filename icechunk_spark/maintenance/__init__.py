"""Upkeep of repositories as Spark jobs: no list of objects is ever held on the driver."""
