"""Reads arrays and metadata tables: plans on the driver, tasks on executors."""
