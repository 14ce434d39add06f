"""Builds repositories to look at, and runs the command in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from helpers.builder import new_place
from helpers.grids.weather_repository import Weather, write_weather

from icechunk_format.command_line.entry import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run ``icechunk-spark`` with some arguments, without a terminal."""

    def run_it(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(int(code), captured.out, captured.err)

    return run_it


@pytest.fixture
def weather() -> Weather:
    return write_weather(new_place())


@pytest.fixture
def weather_v1() -> Weather:
    return write_weather(new_place(), spec_version=1)


@pytest.fixture
def weather_on_disk(tmp_path: Path) -> Weather:
    return write_weather(str(tmp_path / "weather"))
