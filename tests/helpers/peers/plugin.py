"""A pytest plugin for tests of other projects: ``import icechunk`` is our implementation there.

``pytest -p helpers.peers.plugin``; the environment variable ``PEERS_LISTS`` names the file with the
tests that do not apply, and ``PEERS_REPORT`` the file to write the outcomes to.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import hypothesis
import pytest
from helpers.peers import native
from helpers.peers.coroutines import pytest_fixture_setup, pytest_pyfunc_call  # noqa: F401

native.install()

# Their tests talk to an S3 server of their own; they get ours.
for _name in ("boto3", "mypy_boto3_s3", "mypy_boto3_s3.client", "termcolor"):
    sys.modules.setdefault(_name, MagicMock(client=native.s3_client))

_OUTCOMES: dict[str, tuple[str, str]] = {}
_MARKS = ("asyncio", "flaky", "network", "skip_if_param", "hypothesis", "slow", "gpu")


def _not_applicable() -> dict[str, str]:
    path = os.environ.get("PEERS_LISTS")
    return {} if path is None else dict(json.loads(Path(path).read_text()))


def pytest_configure(config: pytest.Config) -> None:
    for mark in _MARKS:
        config.addinivalue_line("markers", f"{mark}: a mark of another project")


def pytest_collection_finish() -> None:
    """Choose the number of examples, after their ``conftest`` has chosen its own."""
    hypothesis.settings.register_profile(
        "peers",
        max_examples=int(os.environ.get("PEERS_EXAMPLES", "20")),
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        database=None,
    )
    hypothesis.settings.load_profile("peers")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lists = _not_applicable()
    for item in items:
        name = item.nodeid.rpartition("tests/")[2]
        for pattern, reason in lists.items():
            if fnmatchcase(name, pattern):
                item.add_marker(pytest.mark.skip(reason=f"not applicable: {reason}"))
                break


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = report.nodeid.rpartition("tests/")[2]
    if report.when == "call" or report.outcome != "passed":
        why = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
        _OUTCOMES[name] = (report.outcome, str(why).removeprefix("Skipped: "))


def pytest_sessionfinish() -> None:
    if path := os.environ.get("PEERS_REPORT"):
        Path(path).write_text(json.dumps(_OUTCOMES, indent=1))
        print(Counter(outcome for outcome, _ in _OUTCOMES.values()), file=sys.stderr)


class _AnyText:
    """Errors with any text: ours differ from the reference's on purpose."""

    def __init__(self, raises: Any) -> None:
        self._raises = raises

    def __call__(self, expected: Any, *args: Any, **kwargs: Any) -> Any:
        kinds = expected if isinstance(expected, tuple) else (expected,)
        base = native.compiled().IcechunkError
        if any(isinstance(kind, type) and issubclass(kind, base) for kind in kinds):
            kwargs.pop("match", None)
        return self._raises(expected, *args, **kwargs)


pytest.raises = _AnyText(pytest.raises)
