"""Checks of a verification, a module for each kind of object."""
