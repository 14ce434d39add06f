"""Yields the rows of each layout: cells, summary, chunks, refs."""
