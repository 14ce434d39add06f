"""Zarr v3 arrays as pure functions: metadata, grids, codecs and data types."""
