"""Options of reading and writing: declared once, parsed and checked."""
