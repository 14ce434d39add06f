"""Reads and writes objects on servers: S3, Google Cloud Storage, Azure, the web, and whatever fsspec opens."""
