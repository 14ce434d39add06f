"""The Icechunk format in Python: versioned Zarr v3 arrays on object storage, without Spark."""
