"""Versions over objects: refs, history, snapshots, manifests, chunks and commits."""
