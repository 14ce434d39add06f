"""Copies a group into a Delta table of Parquet files, and keeps the copy at the branch's tip."""
