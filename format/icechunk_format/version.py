"""Holds the version of both packages. The wheel takes it from here, and so do stored files."""

__version__ = "0.1.0"
