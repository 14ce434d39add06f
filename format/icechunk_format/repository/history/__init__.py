"""Reads of history: which versions exist, which one is meant, how two differ.

Nothing changes here.
"""
