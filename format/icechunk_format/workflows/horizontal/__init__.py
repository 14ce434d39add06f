"""Finds the horizontal coordinates of variables, circular axes, and the CRS."""
