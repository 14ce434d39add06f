"""Writes rows that are chunks, or references to chunks."""
