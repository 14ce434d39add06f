"""Manifest files: chunk references as columns, decoded and encoded."""
