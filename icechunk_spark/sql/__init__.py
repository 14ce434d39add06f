"""SQL that reads repositories: views that follow a branch, and the table function ``icechunk``."""
