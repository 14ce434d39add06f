"""Runs the command as ``python -m icechunk_format.command_line``."""

from __future__ import annotations

from icechunk_format.command_line.entry import main

if __name__ == "__main__":
    main()
