"""Prints answers on a terminal and as JSON."""
