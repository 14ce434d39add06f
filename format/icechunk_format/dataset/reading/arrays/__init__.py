"""Boxes of arrays, fetched and decoded ahead of their reader."""
