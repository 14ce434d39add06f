"""Arithmetic on chunk grids with NumPy alone: axes, boxes, coordinates, and moves of chunks."""
