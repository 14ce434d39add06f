"""The URL of a Delta table, and the options with which deltalake opens it."""

from __future__ import annotations

import pytest

from icechunk_format.workflows.mirroring import DeltaTarget

PLAIN = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("url", "options", "allowed"),
    [
        ("s3://b/t", {"AWS_ENDPOINT_URL": PLAIN}, "true"),
        ("s3a://b/t", {"endpoint": PLAIN}, "true"),
        ("s3://b/t", {"AWS_ENDPOINT_URL": PLAIN, "AWS_ALLOW_HTTP": "false"}, "false"),
        ("s3://b/t", {"AWS_ENDPOINT_URL": "https://host"}, None),
        ("s3://b/t", {}, None),
        ("gs://b/t", {"endpoint": PLAIN}, None),
    ],
)
def test_an_endpoint_without_tls_needs_no_second_option(url, options, allowed):
    assert DeltaTarget.of(url, options).options.get("AWS_ALLOW_HTTP") == allowed


def test_the_endpoint_of_the_environment_counts_unless_options_have_one(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", PLAIN)
    assert DeltaTarget.of("s3://b/t").options == {"AWS_ALLOW_HTTP": "true"}
    assert DeltaTarget.of("/tables/t").options == {}
    assert DeltaTarget.of("s3://b/t", {"AWS_ENDPOINT": "https://host"}).options == {
        "AWS_ENDPOINT": "https://host"
    }
