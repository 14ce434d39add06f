"""Arithmetic on chunk grids: axes, boxes, coordinates.

NumPy only; nothing here knows Zarr or Icechunk.
"""
