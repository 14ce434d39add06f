"""Finds the horizontal coordinates of variables, what is circular, and the reference system."""
