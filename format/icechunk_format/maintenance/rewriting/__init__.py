"""Rewrites manifests to the splitting rules of the configuration."""
