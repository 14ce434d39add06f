"""Selects positions along dimensions: ``isel``, ``sel``, and ``where`` (a package of its own)."""
