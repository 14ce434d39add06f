"""Plans of writes, the tasks that run them, and the commit of their receipts."""
