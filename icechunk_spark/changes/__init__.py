"""Streams from and into repositories: the source, its offsets, and the sink."""
