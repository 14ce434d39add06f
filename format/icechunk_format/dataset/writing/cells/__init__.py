"""Writes rows that are cells; runs on executors."""
