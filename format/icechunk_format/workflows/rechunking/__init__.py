"""Stores arrays again in other chunks: groups of chunks are read, cut into pieces, and joined."""
