"""Finds horizontal coordinates, circular axes, and the CRS of variables."""
