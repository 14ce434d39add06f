"""Reads and writes objects of local folders, object stores and web servers."""
