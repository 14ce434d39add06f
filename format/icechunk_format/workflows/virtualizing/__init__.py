"""Makes files of other formats arrays of a repository, by references."""
