"""SQL conditions: parsed, typed, split into selections, and evaluated over columns."""
