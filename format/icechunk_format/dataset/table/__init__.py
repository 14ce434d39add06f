"""A group as a table: its dimensions, its columns and their types."""
