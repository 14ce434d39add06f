"""Plans reads, and runs their tasks."""
