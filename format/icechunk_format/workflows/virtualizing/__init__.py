"""Files of other formats as arrays of a repository, by references: scanned, compared, committed."""
