"""Writes rows of the layouts ``chunks`` and ``refs``."""
