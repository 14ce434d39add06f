"""Plans arrays of the repository, and writes their values and references."""
