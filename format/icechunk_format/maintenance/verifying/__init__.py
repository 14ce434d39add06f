"""Verifies a repository, in one process or on a cluster."""
