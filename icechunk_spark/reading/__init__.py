"""Reads: the plan on the driver, the tasks on executors, pushdown, metadata tables."""
