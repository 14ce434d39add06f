"""Reads and writes Zarr v3 metadata, and encodes and decodes chunks; does no I/O."""
