"""Spark sessions and their jobs: batches, partitions, options of readers and writers, errors."""
