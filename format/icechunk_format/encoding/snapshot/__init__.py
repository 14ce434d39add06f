"""Reads and writes snapshot files: nodes, and the manifests that each array lists."""
