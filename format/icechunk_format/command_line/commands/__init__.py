"""Defines the commands: each parses its arguments, calls the library, and prints the result."""
