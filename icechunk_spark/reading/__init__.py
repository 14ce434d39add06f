"""Reads arrays and metadata tables: plans on the driver, runs tasks on executors."""
