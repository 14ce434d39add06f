"""Writes of rows that are cells."""
