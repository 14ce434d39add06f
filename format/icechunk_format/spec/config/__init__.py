"""The configuration of a repository: its fields, changes to them, and its text."""
