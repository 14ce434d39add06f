"""Plans of reads and the tasks that run them. Writing is in the room beside this one."""
