"""Workflows on arrays: points, polygons, changes, Delta copies, archives."""
