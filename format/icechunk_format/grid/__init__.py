"""Arithmetic on chunk grids with NumPy alone: axes, boxes, groups and moves of chunks."""
