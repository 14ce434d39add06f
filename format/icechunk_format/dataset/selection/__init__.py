"""Selections of positions along dimensions: ``isel``, ``sel``, and ``where`` in the room below."""
