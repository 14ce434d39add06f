"""Merges branches: the changes of one side since the common ancestor, on top of the other."""
