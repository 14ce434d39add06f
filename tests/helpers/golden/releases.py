"""Installs every release of the reference from 1.0 on, each in an environment of its own.

``python tests/helpers/golden/releases.py`` installs those that the cache lacks: about 250 MB each,
most of it shared by links. ``RELEASES`` is the folder of the cache, which is outside of the
repository by default.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

RELEASES = Path(
    os.environ.get("RELEASES") or Path.home() / ".cache" / "icechunk-spark" / "releases"
)
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_UV = (sys.executable, "-m", "uv")


def installed() -> list[str]:
    """Return the releases that the cache has, the oldest first."""
    return sorted((mark.parent.name for mark in RELEASES.glob("*/.ready")), key=_number)


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def published() -> list[str]:
    """Return the releases on PyPI from 1.0 on, without those before a release."""
    command = [*_PIP, "index", "versions", "icechunk"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    [line] = re.findall(r"^Available versions: (.*)$", text, re.MULTILINE)
    return [version for version in line.split(", ") if re.fullmatch(r"[1-9]\d*(\.\d+)+", version)]


def install(version: str) -> bool:
    """Install a release; return True if that works on this machine."""
    folder = RELEASES / version
    for command in (
        (*_UV, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)),
        (*_UV, "pip", "install", "--quiet", "--python", str(folder), f"icechunk=={version}"),
    ):
        if subprocess.run(command).returncode:
            return False
    (folder / ".ready").touch()
    return True


def main() -> None:
    """Install what the cache lacks, and print the releases that cannot be installed."""
    RELEASES.mkdir(parents=True, exist_ok=True)
    missing = [version for version in published() if version not in installed()]
    failed = [version for version in missing if not install(version)]
    print(
        f"{len(installed())} releases are in {RELEASES}", *failed and ("; not installed:", *failed)
    )


if __name__ == "__main__":
    main()
