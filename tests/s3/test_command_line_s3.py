"""The command line reads and writes S3, with --option or credentials of the environment."""

from __future__ import annotations

import json
import uuid

import pytest
from helpers.grids.weather_repository import write_weather
from helpers.servers.s3 import SECRET_KEY

from icechunk_format.command_line.entry import run
from icechunk_format.storage.location import Location


@pytest.fixture(scope="module")
def weather(s3_server, shared_bucket):
    place = f"s3://{shared_bucket}/{uuid.uuid4()}"
    return write_weather(Location(place, options=s3_server.storage_options))


def test_options_are_given_as_in_spark(s3_server, weather, capsys):
    flags = []
    for name, value in s3_server.storage_options.items():
        flags += ["--option", f"storage.{name}={value}"]
    assert run(["log", weather.url, "--json", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["message"].split("\n")[0] for entry in found["snapshots"]][:3] == [
        "Change it",
        "Look at it",
        "Write it",
    ]
    assert run(["tag", "create", weather.url, "s3", *flags]) == 0
    assert "s3" in weather.repository.tags()


def test_the_environment_is_used_without_options(s3_server, weather, capsys, monkeypatch):
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    assert run(["tree", weather.url]) == 0
    assert "2 groups" in capsys.readouterr().out


def test_refused_credentials_are_not_repeated(s3_server, weather, capsys):
    flags = []
    for name, value in {**s3_server.storage_options, "secret": f"{SECRET_KEY}-wrong"}.items():
        flags += ["-o", f"storage.{name}={value}"]
    assert run(["tree", weather.url, *flags, "--traceback"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert SECRET_KEY not in captured.err
    assert captured.err.splitlines()[-1].startswith("error: ")
