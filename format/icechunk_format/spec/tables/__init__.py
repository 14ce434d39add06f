"""Flatbuffers tables, read and written in bulk, with every offset checked.

What the tables mean is in the rooms beside this one.
"""
