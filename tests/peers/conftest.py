"""Tests of other projects: their marks, and tests that are coroutines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers.peers.coroutines import pytest_fixture_setup, pytest_pyfunc_call  # noqa: F401

if TYPE_CHECKING:
    import pytest

_MARKS = ("asyncio", "flaky", "network", "skip_if_param", "skip_with_dask_array")


def pytest_configure(config: pytest.Config) -> None:
    for mark in _MARKS:
        config.addinivalue_line("markers", f"{mark}: a mark of another project")
