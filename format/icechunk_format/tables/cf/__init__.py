"""Applies CF conventions: decodes stored values to Arrow columns, and encodes them again."""
