"""The ``repo`` file of version 2, and the ref files that version 1 has in its place."""
