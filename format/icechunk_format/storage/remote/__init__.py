"""Reaches objects on servers: S3, Google Cloud Storage, Azure, the web, and what fsspec opens."""
