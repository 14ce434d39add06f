"""Stores objects as files of a local folder."""
