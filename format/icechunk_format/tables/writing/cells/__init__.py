"""Writes the cells of rows, and makes those of regions missing; run on executors."""
