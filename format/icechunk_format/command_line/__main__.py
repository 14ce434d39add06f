"""``python -m icechunk_format.command_line``, where the command is not on the path."""

from __future__ import annotations

from icechunk_format.command_line.entry import main

if __name__ == "__main__":
    main()
