"""Encodes and decodes chunks. Documents and data types are one folder up."""
