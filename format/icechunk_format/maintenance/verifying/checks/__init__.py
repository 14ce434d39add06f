"""The checks of a verification, a file for each kind of object."""
