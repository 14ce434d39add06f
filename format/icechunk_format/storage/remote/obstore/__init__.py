"""The client ``obstore``, for S3, Google Cloud Storage, Azure and the web."""
