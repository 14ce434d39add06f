"""Writes rows of the layout ``cells``; runs on executors."""
