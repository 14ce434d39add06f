"""Makes the cells of a region missing: those that are deleted, or replaced by rows."""
