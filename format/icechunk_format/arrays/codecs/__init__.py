"""Codecs of chunks, and the chain that applies them. Documents and data types are one folder up."""
