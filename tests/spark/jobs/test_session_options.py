"""Defaults of a session, and Hadoop's settings of S3, among the options of a call."""

import pytest
from helpers.raised import raises

import icechunk_spark
from icechunk_format.errors import InvalidInputError
from icechunk_spark.jobs.session_options import (
    session_change,
    set_session_options,
    with_session_options,
)

HADOOP = {
    "fs.s3a.access.key": "one",
    "fs.s3a.secret.key": "two",
    "fs.s3a.endpoint": "127.0.0.1:9000",
    "fs.s3a.endpoint.region": "us-east-1",
    "fs.s3a.connection.ssl.enabled": "false",
}


@pytest.fixture
def hadoop(spark):
    settings = spark._jsc.hadoopConfiguration()
    before = {name: settings.get(name) for name in HADOOP}
    for name, value in HADOOP.items():
        settings.set(name, value)
    yield settings
    for name, value in before.items():
        settings.unset(name) if value is None else settings.set(name, value)


@pytest.mark.parametrize(
    "spelling", ["storage.from_spark", "storage_from_spark", "storage.fromSpark"]
)
def test_settings_of_hadoop(spark, hadoop, spelling):
    found = with_session_options(
        spark, {spelling: True, "storage_region": "eu-west-1"}, "s3a://bucket/r"
    )
    assert found == {
        "storage_region": "eu-west-1",
        "storage.key": "one",
        "storage.secret": "two",
        "storage.endpoint_url": "http://127.0.0.1:9000",
    }
    assert with_session_options(spark, {spelling: "false"}, "s3://bucket/r") == {}
    for path in ("folder", "file:///s3://x", "https://host/r", "abfss://c@a.dfs/r", "s3fs::s3://b"):
        assert with_session_options(spark, {spelling: "True"}, path) == {}
    with raises(InvalidInputError, option="storage.from_spark"):
        with_session_options(spark, {spelling: "yes"}, "s3://bucket/r")
    assert with_session_options(spark, {"tag": "v1", "branch": None}) == {"tag": "v1"}


def test_defaults_of_a_session(spark, hadoop):
    icechunk_spark.register(spark, virtual_authorize=["s3://a/", "s3://b/"])
    try:
        found = with_session_options(spark, {"tag": "v1"})
        assert found == {"tag": "v1", "virtual.authorize": ["s3://a/", "s3://b/"]}
        assert with_session_options(spark, {"virtualAuthorize": "s3://c/"}) == {
            "virtualAuthorize": "s3://c/"
        }
        for options, path in (({"layout": "refs"}, ""), ({"table": "refs"}, ""), ({}, "x#refs")):
            assert with_session_options(spark, options, path) == options
        options = {"storage_region": "x", "tag": "v1", "message": "Map"}
        read, commit = session_change(spark, "s3://a/r", options, "map_blocks")
        assert commit.message == "Map"
        assert (read.tag, read.virtual_authorize) == ("v1", ("s3://a/", "s3://b/"))
        assert dict(read.storage_options) == {"region": "x"}
        icechunk_spark.register(spark, storage_from_spark=True)
        assert with_session_options(spark, {}, "s3://b/r")["storage.key"] == "one"
    finally:
        icechunk_spark.register(spark)
    assert with_session_options(spark, {}) == {}
    with raises(InvalidInputError, option="layout"):
        session_change(spark, "s3://a/r", {"layout": "refs"}, "map_blocks")
    set_session_options(spark, {})
