"""The command ``icechunk-spark``, for people at a terminal and for scripts."""
