"""Dependencies have licences that users of Apache-2.0 expect.

Read from the metadata of the packages that are installed: runtime dependencies, those of the
extras, and theirs in turn. The table in ``format/README.md`` lists the direct ones.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "PSF-2.0",
    "Zlib",
}  # fmt: skip
EXTRAS = frozenset({"spark", "cli", "geo", "mirror", "progress", "xarray", "virtualize"})
# What packages say that have no SPDX expression yet.
SPDX = {
    "Apache 2.0": "Apache-2.0",
    "Apache License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Python Software Foundation License": "PSF-2.0",
}
# What was read by hand: packages that say nothing, or whose licence is fine for what they are.
REVIEWED = {
    "certifi": "Mozilla Public License 2.0 (MPL 2.0)",  # a list of certificates, used unchanged
    "hdf5plugin": "",  # MIT; licences of its filters: its doc/information.rst
    "tqdm": "MPL-2.0 AND MIT",  # imported unchanged; MPL-2.0 asks for changes to its own files only
    "ujson": "BSD-3-Clause AND TCL",  # TCL is as permissive as BSD
}


def licence_of(name: str) -> str:
    """Return the licence of an installed package as an SPDX expression."""
    metadata = importlib.metadata.metadata(name)
    said = metadata.get("License-Expression") or ""
    if not said:
        classifiers = metadata.get_all("Classifier", [])
        found = [
            line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License ::")
        ]
        found = [line for line in found if line != "OSI Approved"]
        said = " AND ".join(SPDX.get(line, line) for line in found) or metadata.get("License") or ""
        said = said.strip().partition("\n")[0]
    return SPDX.get(said, said)


def requirements(name: str, extras: frozenset[str]) -> list[Requirement]:
    """Return what a package needs here, with some of its extras."""
    found = []
    for line in importlib.metadata.requires(name) or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            found.append(requirement)
    return found


def runtime_packages() -> dict[str, bool]:
    """Return every package that comes along, and whether it is asked for directly."""
    direct = requirements("icechunk-spark", EXTRAS)
    found = {requirement.name.lower(): True for requirement in direct}
    waiting = direct
    while waiting:
        requirement = waiting.pop()
        try:
            following = requirements(requirement.name, frozenset(requirement.extras))
        except importlib.metadata.PackageNotFoundError:
            # An extra that is not installed here.
            found.pop(requirement.name.lower(), None)
            continue
        for other in following:
            if other.name.lower() not in found:
                found[other.name.lower()] = False
                waiting.append(other)
    return found


def test_every_licence_is_allowed():
    packages = runtime_packages()
    assert {"numpy", "pyarrow", "s3fs", "botocore", "deltalake", "shapely"} <= set(packages)
    for name in packages:
        licence = licence_of(name)
        if licence == REVIEWED.get(name):
            continue
        words = set(re.findall(r"[\w.-]+", licence)) - {"AND", "OR", "WITH"}
        assert words, f"{name} does not say its licence"
        assert words <= ALLOWED, f"{name} is licensed under {licence}; is that allowed?"


def test_the_table_of_the_readme_is_complete():
    text = (ROOT / "format" / "README.md").read_text()
    table = dict(re.findall(r"^\| `([\w.-]+)` \| ([^|]+) \|", text, re.MULTILINE))
    for name, is_direct in runtime_packages().items():
        if is_direct:
            assert name in {row.lower() for row in table}, f"{name} is not in format/README.md"
    for name, licence in table.items():
        try:
            # Newer versions may name the licences of what they carry along, too.
            assert licence.strip() in licence_of(name), name
        except importlib.metadata.PackageNotFoundError:
            continue
