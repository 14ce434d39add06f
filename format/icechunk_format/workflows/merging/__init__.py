"""Merges arrays that grew on both branches, and adds labels to conflicts of merges."""
