"""Files of a repository, fetched, decoded, cached and stored."""
