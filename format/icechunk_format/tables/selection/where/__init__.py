"""Handles SQL conditions: parses, types, splits and evaluates them."""
