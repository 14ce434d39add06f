"""Reads and writes the ``repo`` file of version 2, and the ref files of version 1."""
