"""The meaning of arrays: a group as a table, CF decoding, selections and plans."""
