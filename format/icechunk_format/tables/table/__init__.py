"""Turns a group into a table: its dimensions, its columns and their types."""
