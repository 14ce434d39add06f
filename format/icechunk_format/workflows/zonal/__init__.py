"""Sums cells of a grid up by polygons: geometries, cover of cells, statistics, combination."""
