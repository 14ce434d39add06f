"""Objects with byte ranges and conditional writes; nothing here knows Icechunk."""
