"""Runs the test suites of other projects from their checkouts, over our implementation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.examples import by_day

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TESTS = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    """The tests of a run by outcome, and why some did not run."""

    counts: Counter[str]
    failed: tuple[str, ...]
    skipped: Counter[str]
    output: str

    def summary(self) -> str:
        """Return lines with the counts, and with the reasons."""
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        reasons = "\n".join(f"  {count} {why}" for why, count in self.skipped.most_common())
        return f"{counts}\n{reasons}"


def checkout(variable: str) -> Path:
    """Return the folder that an environment variable names; skip without it."""
    folder = os.environ.get(variable)
    if folder is None:
        pytest.skip(f"{variable} names no checkout; make peers clones it")
    return Path(folder)


def run_suite(
    root: Path,
    tests: Sequence[str],
    not_applicable: Mapping[str, str],
    folder: Path,
    *,
    seconds: int = 3000,
    s3_in_folder: bool = False,
    examples: int | None = None,
) -> Outcome:
    """Run test files of a checkout in a process whose ``import icechunk`` is ours.

    ``not_applicable`` has patterns of test names below ``tests/``, and the reason of each. With
    ``s3_in_folder`` a folder stands for the S3 server, whose times are whole seconds.
    """
    lists, report = folder / "not-applicable.json", folder / "outcomes.json"
    lists.write_text(json.dumps(dict(not_applicable)))
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(root)]
    command += ["-p", "helpers.peers.plugin", "-p", "no:cacheprovider", "-n", "0", "-q"]
    command += ["-W", "ignore", "--timeout=300", "--tb=short", *tests]
    environment = {
        **os.environ,
        # The checkout comes first, since its tests import its own ``conftest``.
        "PYTHONPATH": os.pathsep.join([str(root), str(_TESTS)]),
        "PEERS_LISTS": str(lists),
        "PEERS_REPORT": str(report),
        "PEERS_EXAMPLES": str(examples or by_day(20)),
        "ICECHUNK_LOG": "error",
    }
    if s3_in_folder:
        environment["PEERS_S3"] = str(folder / "s3")
    ran = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=seconds
    )
    if not report.exists():
        raise AssertionError(f"no test ran:\n{ran.stdout}\n{ran.stderr}")
    outcomes = json.loads(report.read_text())
    return Outcome(
        counts=Counter(outcome for outcome, _ in outcomes.values()),
        failed=tuple(name for name, (outcome, _) in outcomes.items() if outcome == "failed"),
        skipped=Counter(why for outcome, why in outcomes.values() if outcome == "skipped"),
        output=ran.stdout,
    )
