"""One emulator of each cloud for the whole session, and one container on it."""

from __future__ import annotations

import contextlib

import pytest
from helpers.servers.azurite import AzuriteMissingError, running_azurite
from helpers.servers.gcs import GcsMissingError, running_gcs_server


@pytest.fixture(scope="session")
def azure():
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(running_azurite())
        except AzuriteMissingError as error:
            pytest.skip(f"no Azure emulator: {error}")
        yield server


@pytest.fixture(scope="session")
def container(azure):
    return azure.new_container()


@pytest.fixture(scope="session")
def google():
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(running_gcs_server())
        except GcsMissingError as error:
            pytest.skip(f"no Google emulator: {error}")
        yield server


@pytest.fixture(scope="session")
def bucket(google):
    return google.new_bucket()
