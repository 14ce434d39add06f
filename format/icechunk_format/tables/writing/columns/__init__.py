"""Maps the columns of a write to arrays, and their labels to indices."""
