"""Makes the arrays of the repository, and fills them: with values, and with references."""
