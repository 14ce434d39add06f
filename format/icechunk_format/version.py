"""The version of both packages, which the wheel and stored files record."""

__version__ = "0.1.0"
