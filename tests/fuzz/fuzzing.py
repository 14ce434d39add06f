"""Runs fuzz targets: cases by number, each with its own seed, within bounds of time and memory.

As a program it fuzzes in a process whose address space is bounded, and prints what it found as
JSON: ``python tests/fuzz/fuzzing.py --seconds 60 --seed 1 [--only NAME] [--case NUMBER]``.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.targets import make_targets

from icechunk_format.errors import IcechunkError

if TYPE_CHECKING:
    from fuzz.targets import Target

SLOWEST_CASE_SECONDS = 5.0
ADDRESS_SPACE_BYTES = 6 << 30
LEAST_CASES = 25


@dataclass
class Outcome:
    """What came of one target."""

    cases: int = 0
    accepted: int = 0
    refused: int = 0
    slowest: float = 0.0
    findings: list[dict[str, Any]] = field(default_factory=list)


def one_case(target: Target, seed: int, number: int) -> tuple[str, float, str]:
    """Run a case; return ``accepted``, ``refused`` or ``finding``, its seconds, and a traceback."""
    chance = random.Random(f"{seed}-{target.name}-{number}")
    case = target.mutate(chance.choice(list(target.seeds)), chance)
    started = time.process_time()
    try:
        target.use(case)
        kind, text = "accepted", ""
    except IcechunkError as error:
        # What is said goes to a terminal, and Spark shows the last line.
        shown = str(error)
        kind, text = "refused", ""
        if any((ord(c) < 32 and c != "\n") or ord(c) == 127 for c in shown):
            kind, text = "finding", f"control characters in a message: {shown!r}"
        elif not shown.strip() or len(shown) > 20_000:
            kind, text = "finding", f"a message of {len(shown)} characters: {shown[:200]!r}"
    except Exception:
        kind, text = "finding", traceback.format_exc()
    seconds = time.process_time() - started
    if seconds > SLOWEST_CASE_SECONDS:
        kind, text = "finding", f"it took {seconds:.1f} s\n{text}"
    return kind, seconds, text


def fuzz(targets: list[Target], *, seconds: float, seed: int) -> dict[str, Outcome]:
    """Fuzz every target for an equal part of the time, and some cases however slow the machine."""
    outcomes = {}
    for target in targets:
        outcome = outcomes[target.name] = Outcome()
        deadline = time.monotonic() + seconds / len(targets)
        while time.monotonic() < deadline or outcome.cases < LEAST_CASES:
            kind, spent, text = one_case(target, seed, outcome.cases)
            outcome.slowest = max(outcome.slowest, spent)
            if kind == "finding":
                outcome.findings.append({"seed": seed, "case": outcome.cases, "text": text})
                if len(outcome.findings) >= 20:
                    break
            elif kind == "accepted":
                outcome.accepted += 1
            else:
                outcome.refused += 1
            outcome.cases += 1
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="name of one target")
    parser.add_argument("--case", type=int, help="number of one case, with --only")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    warnings.simplefilter("error")
    targets = [t for t in make_targets() if given.only in (None, t.name)]
    if given.case is not None:
        kind, seconds, text = one_case(targets[0], given.seed, given.case)
        print(f"{kind} in {seconds:.3f} s\n{text}")
        return int(kind == "finding")
    outcomes = fuzz(targets, seconds=given.seconds, seed=given.seed)
    # Not ru_maxrss, which starts with the memory of the process that started this one.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) // 1024
    print(json.dumps({"peak_mb": peak, "targets": {n: vars(o) for n, o in outcomes.items()}}))
    return int(any(outcome.findings for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
