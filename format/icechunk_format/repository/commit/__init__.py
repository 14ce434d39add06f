"""Stores the changes of a session as manifests, a snapshot and a transaction log."""
