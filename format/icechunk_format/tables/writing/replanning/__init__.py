"""Plans a write again when another writer has committed first."""
