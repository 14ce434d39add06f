"""The version of both packages, from which the wheel and stored files take it."""

__version__ = "0.1.0"
