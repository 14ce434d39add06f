"""Decodes and encodes the files of an Icechunk repository, without input or output."""
