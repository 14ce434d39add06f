"""Checks of a verification, with a module for each kind of object."""
