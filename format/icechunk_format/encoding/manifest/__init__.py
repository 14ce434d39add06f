"""Decodes and encodes manifest files, with chunk references as columns."""
