"""Reads history: branches, tags, versions, and what changed between two of them.

Nothing is changed here.
"""
