"""Combines archives of files into datasets of virtual references, with Spark."""
