"""The rows of a table that changed between two versions, by transaction logs; without Spark."""
