"""The mutable state of a repository: branches, tags, configuration. One function replaces it."""
