"""Reduces arrays along dimensions: Spark runs the tasks and shuffles parts of statistics."""
