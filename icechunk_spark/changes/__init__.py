"""Streams from and to repositories: the source, its offsets, and the sink."""
