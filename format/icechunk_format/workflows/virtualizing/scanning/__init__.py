"""Lists, opens and parses files."""
