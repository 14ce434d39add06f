"""Snapshot files: nodes, and the manifests that each array lists."""
