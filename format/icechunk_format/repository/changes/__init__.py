"""Changes of a session before the commit, and conflicts between the changes of two writers."""
