"""Stores objects on servers: S3, Google Cloud Storage, Azure, HTTP, and others through fsspec."""
