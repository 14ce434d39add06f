"""Icechunk objects as pure functions: bytes to values and values to bytes."""
