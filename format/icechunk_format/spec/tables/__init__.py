"""Reads and writes flatbuffers tables, one by one or in bulk, and checks every offset.

What the tables mean is in the folders beside this one.
"""
