"""Garbage collection: roots, marks, listing and sweep, in one process or in parts."""
