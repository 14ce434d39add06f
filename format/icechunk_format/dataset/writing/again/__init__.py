"""Writes planned again on top of what others committed first."""
