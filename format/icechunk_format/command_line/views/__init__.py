"""Prints results on a terminal and as JSON."""
