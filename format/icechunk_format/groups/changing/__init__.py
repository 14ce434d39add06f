"""Changes arrays of a group: stores chunks in tasks, and commits them with their documents."""
