"""Plans which files form the dataset, and the span of each file."""
