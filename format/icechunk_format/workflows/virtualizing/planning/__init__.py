"""Plans which files fit together, and the span of each."""
