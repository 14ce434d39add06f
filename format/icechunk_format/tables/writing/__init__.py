"""Plans writes, runs their tasks, and commits the receipts."""
