"""Fetches the bytes of chunks: native, inline and virtual ones."""
