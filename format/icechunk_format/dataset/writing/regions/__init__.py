"""Makes the cells of a deleted or replaced region missing."""
