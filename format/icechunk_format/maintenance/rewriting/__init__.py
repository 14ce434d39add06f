"""Manifests rewritten to other splitting rules."""
