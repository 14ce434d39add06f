"""Reads and writes flatbuffers tables, one by one or in bulk, and checks every offset."""
