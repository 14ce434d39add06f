"""From the changes of a session to a snapshot, its log, and one conditional write."""
