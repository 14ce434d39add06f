"""Reads history: branches, tags, snapshots, and the changes between two snapshots."""
