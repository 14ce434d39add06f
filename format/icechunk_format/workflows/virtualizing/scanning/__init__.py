"""Lists, opens and parses files, and returns what is small of them."""
