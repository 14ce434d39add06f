"""The rows of a table that changed between two snapshots, by transaction logs; without Spark."""
