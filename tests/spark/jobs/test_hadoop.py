"""Hadoop's settings as options of the storage of a URL."""

from __future__ import annotations

import pytest

from icechunk_spark.jobs.hadoop import options_of_hadoop, takes_settings

S3 = {
    "fs.s3a.access.key": "one",
    "fs.s3a.secret.key": "two",
    "fs.s3a.session.token": "three",
    "fs.s3a.endpoint": "127.0.0.1:9000",
    "fs.s3a.endpoint.region": "us-east-1",
    "fs.s3a.connection.ssl.enabled": "false",
    "fs.s3a.bucket.my.archive.access.key": "four",
    "fs.s3a.bucket.my.archive.secret.key": "five",
    "fs.s3a.bucket.my.archive.endpoint": "https://archive",
    "fs.s3a.bucket.public.aws.credentials.provider": (
        "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    ),
}
OF_ALL = {
    "storage.key": "one",
    "storage.secret": "two",
    "storage.token": "three",
    "storage.endpoint_url": "http://127.0.0.1:9000",
    "storage.region": "us-east-1",
}
KEY = "fs.azure.account.key"
TYPE = "fs.azure.account.auth.type"
OAUTH = "fs.azure.account.oauth2.client"
HOST = "weather.dfs.core.windows.net"
LOGIN = "https://login.microsoftonline.com/tenant/oauth2/token"
ABFSS = f"abfss://c@{HOST}/r"


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3A"])
def test_s3_has_those_of_all_buckets_and_of_one(scheme):
    assert options_of_hadoop(f"{scheme}://bucket/r", S3) == OF_ALL
    assert options_of_hadoop(f"{scheme}://my.archive/r", S3) == {
        "storage.key": "four",
        "storage.secret": "five",
        "storage.endpoint_url": "https://archive",
        "storage.region": "us-east-1",
    }
    assert options_of_hadoop(f"{scheme}://public/r", S3) == {
        "storage.endpoint_url": "http://127.0.0.1:9000",
        "storage.region": "us-east-1",
        "storage.anon": "true",
    }


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({f"{KEY}.{HOST}": " k "}, {"storage.account_key": "k"}),
        ({f"{KEY}.weather.blob.core.windows.net": "k"}, {"storage.account_key": "k"}),
        ({f"{KEY}.other.dfs.core.windows.net": "k"}, {}),
        ({f"fs.azure.sas.fixed.token.{HOST}": "t"}, {"storage.sas_token": "t"}),
        (
            {
                f"{OAUTH}.id.{HOST}": "i",
                f"{OAUTH}.secret": "s",
                f"{OAUTH}.endpoint.{HOST}": LOGIN,
            },
            {"storage.client_id": "i", "storage.client_secret": "s", "storage.tenant_id": "tenant"},
        ),
        ({f"{OAUTH}.id": "i", f"{OAUTH}.endpoint": LOGIN}, {}),
        (
            {
                f"{OAUTH}.id": "i",
                f"{OAUTH}.secret": "s",
                f"{OAUTH}.endpoint": "https://login.chinacloudapi.cn/tenant/oauth2/v2.0/token",
            },
            {
                "storage.client_id": "i",
                "storage.client_secret": "s",
                "storage.tenant_id": "tenant",
                "storage.authority_host": "https://login.chinacloudapi.cn",
            },
        ),
        # Hadoop takes the token of a container before that of its account.
        (
            {
                "fs.azure.sas.fixed.token": "of all",
                f"fs.azure.sas.fixed.token.{HOST}": "of the account",
                f"fs.azure.sas.fixed.token.c.{HOST}": "of the container",
            },
            {"storage.sas_token": "of the container"},
        ),
        ({"fs.azure.sas.c.weather.blob.core.windows.net": "t"}, {"storage.sas_token": "t"}),
        ({f"fs.azure.sas.fixed.token.other.{HOST}": "t"}, {}),
        # The type decides among several.
        (
            {f"{KEY}.{HOST}": "k", "fs.azure.sas.fixed.token": "t", TYPE: "SAS"},
            {"storage.sas_token": "t"},
        ),
        (
            {f"{KEY}.{HOST}": "k", "fs.azure.sas.fixed.token": "t", f"{TYPE}.{HOST}": "SharedKey"},
            {"storage.account_key": "k"},
        ),
        ({f"{KEY}.{HOST}": "k", f"{TYPE}.{HOST}": "OAuth"}, {}),
        ({f"{KEY}.{HOST}": "k", TYPE: "Custom"}, {}),
    ],
)
def test_azure_has_those_of_the_account(settings, found):
    assert options_of_hadoop(ABFSS, settings) == found


def test_an_account_of_another_cloud_has_settings_by_its_host():
    host = "weather.dfs.core.usgovcloudapi.net"
    settings = {f"{KEY}.{host}": "k", f"{KEY}.{HOST}": "of the public cloud"}
    assert options_of_hadoop(f"abfss://c@{host}/r", settings) == {"storage.account_key": "k"}


def test_azure_needs_the_account_in_the_url():
    assert options_of_hadoop("az://container/r", {KEY: "k"}) == {}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        (
            {"fs.gs.auth.service.account.json.keyfile": "/k.json", "fs.gs.project.id": "p"},
            {"storage.token": "/k.json", "storage.project": "p"},
        ),
        (
            {"google.cloud.auth.service.account.json.keyfile": "/k.json"},
            {"storage.token": "/k.json"},
        ),
        ({"fs.gs.auth.type": "UNAUTHENTICATED"}, {"storage.anon": "true"}),
        (
            {
                "fs.gs.auth.type": "COMPUTE_ENGINE",
                "fs.gs.auth.service.account.json.keyfile": "/k.json",
            },
            {},
        ),
        (
            {"fs.gs.storage.root.url": "http://emulator:4443/"},
            {"storage.endpoint_url": "http://emulator:4443"},
        ),
        ({"fs.gs.storage.root.url": "https://storage.googleapis.com/"}, {}),
    ],
)
def test_google_cloud_storage(settings, found):
    assert options_of_hadoop("gs://bucket/r", settings) == found


@pytest.mark.parametrize(
    "url",
    [
        *("/folder", "file:///x", "file:/x", "memory://x", "https://host/r", "dbfs:/x"),
        *("hdfs://name/x", "simplecache::s3://bucket/r", ""),
    ],
)
def test_other_storages_have_none(url):
    assert not takes_settings(url)


@pytest.mark.parametrize("url", ["s3://b/r", "s3a://b/r", ABFSS, "az://c/r", "gs://b/r"])
def test_storages_with_settings(url):
    assert takes_settings(url)
