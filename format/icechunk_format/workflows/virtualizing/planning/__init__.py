"""Decides which files fit together, and where each of them lies."""
