"""Every decoder answers damaged files with a typed error, within bounds of time and memory.

Structure-aware cases by seed: what is read, or refused with a message that can be shown on a
terminal, within bounds of time and memory. Short here; ``make torture SECONDS=600`` runs long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SECONDS = float(os.environ.get("FUZZ_SECONDS", "7"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
PROGRAM = Path(__file__).with_name("fuzzing.py")


def test_no_decoder_is_surprised():
    # A process of its own: its address space is bounded, and damage may not spread.
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "--seconds", str(SECONDS), "--seed", str(SEED)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("{"), done.stderr[-3000:]
    report = json.loads(done.stdout)
    for name, outcome in report["targets"].items():
        print(
            f"{name}: {outcome['cases']} cases, {outcome['refused']} refused, "
            f"{outcome['accepted']} read, slowest {outcome['slowest']:.2f} s"
        )
    print(f"peak memory {report['peak_mb']} MB")
    findings = {
        name: outcome["findings"][0]
        for name, outcome in report["targets"].items()
        if outcome["findings"]
    }
    assert not findings, "\n\n".join(
        f"{name}: python {PROGRAM} --only {name!r} --seed {found['seed']} --case {found['case']}\n"
        f"{found['text']}"
        for name, found in findings.items()
    )
    for name, outcome in report["targets"].items():
        assert outcome["refused"] > 0 or name == "verify", name
    assert report["peak_mb"] < 1500
