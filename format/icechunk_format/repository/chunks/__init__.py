"""Bytes of chunks, native, inline or virtual, for readers."""
