"""CF conventions: stored values to decoded values and Arrow columns, and back."""
