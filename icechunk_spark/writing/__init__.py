"""Writes: planned ones, unplanned ones, and the ``DataFrame.write`` of registered sessions."""
