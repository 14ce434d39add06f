"""Spark reads Azure and Google with the settings that Hadoop's file systems have in its session."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest
from helpers.raised import raises
from helpers.servers.azure_login import CLIENT_ID, CLIENT_SECRET, TENANT, running_login
from helpers.servers.gcs import GcsMissingError

import icechunk_spark
from icechunk_format.errors import StorageError
from icechunk_format.options.write import WriteOptions
from icechunk_format.storage.location import Location
from icechunk_format.tables.writing.in_process import write_table

HOST = "lab.dfs.core.windows.net"
OAUTH = "fs.azure.account.oauth2.client"
TABLE = pa.table({"x": pa.array(range(6), pa.int32()), "v": [1.0] * 6})


def stored(location):
    write_table(location, TABLE, WriteOptions(mode="append", dims=("x",), chunks={"x": 3}))


@pytest.fixture
def hadoop(spark):
    """Set settings of Hadoop as an administrator does, and remove them afterwards."""
    configuration, names = spark.sparkContext._jsc.hadoopConfiguration(), []

    def set_all(**settings):
        for name, value in settings.items():
            names.append(name)
            configuration.set(name, value)

    yield set_all
    for name in names:
        configuration.unset(name)


@pytest.fixture(scope="module")
def weather(azure, container):
    """Return the URL of a repository on Azure, as Hadoop writes it."""
    name = uuid.uuid4().hex
    stored(Location(f"az://{container}/{name}", options=azure.storage_options))
    return f"abfss://{container}@{HOST}/{name}"


def rows(spark, url, **options):
    frame = icechunk_spark.read(spark, url, storage_from_spark=True, **options)
    return frame.where("x >= 2").count()


def test_the_key_of_an_account(spark, hadoop, azure, weather):
    with_endpoint = {"storage.endpoint_url": azure.endpoint_url}
    hadoop(**{f"fs.azure.account.key.{HOST}": azure.key})
    assert rows(spark, weather, **with_endpoint) == 4
    wrong = "Y2FuYXJ5LWhhZG9vcC1rZXk="
    hadoop(**{f"fs.azure.account.key.{HOST}": wrong})
    with raises(StorageError, status=403) as caught:
        rows(spark, weather, **with_endpoint)
    assert wrong not in str(caught.value)


def test_the_signature_of_a_container_among_others(spark, hadoop, azure, container, weather):
    hadoop(
        **{
            "fs.azure.account.auth.type": "SAS",
            f"fs.azure.account.key.{HOST}": "d3Jvbmc=",
            "fs.azure.sas.fixed.token": "sv=2019-12-12&sig=d3Jvbmc%3D",
            f"fs.azure.sas.fixed.token.{container}.{HOST}": azure.sas_token("rl"),
        }
    )
    assert rows(spark, weather, **{"storage.endpoint_url": azure.endpoint_url}) == 4


def test_a_service_principal_of_another_login_server(spark, hadoop, azure, weather):
    with running_login(azure) as login:
        hadoop(
            **{
                "fs.azure.account.auth.type": "OAuth",
                f"{OAUTH}.id": CLIENT_ID,
                f"{OAUTH}.secret": CLIENT_SECRET,
                f"{OAUTH}.endpoint": f"{login.url}/{TENANT}/oauth2/token",
            }
        )
        with_endpoint = {"storage.endpoint_url": login.endpoint_url}
        assert rows(spark, weather, **with_endpoint) == 4
        hadoop(**{f"{OAUTH}.secret": "canary-wrong-secret"})
        with raises(StorageError) as caught:
            rows(spark, weather, **with_endpoint)
        assert "canary-wrong-secret" not in str(caught.value)


def test_the_key_file_of_a_service_account(spark, hadoop, google, bucket, tmp_path):
    url = f"gs://{bucket}/{uuid.uuid4().hex}"
    stored(Location(url, options=google.storage_options))
    try:
        key_file = google.new_service_account(tmp_path)
    except GcsMissingError as error:
        pytest.skip(str(error))
    hadoop(
        **{
            "fs.gs.auth.type": "SERVICE_ACCOUNT_JSON_KEYFILE",
            "fs.gs.auth.service.account.json.keyfile": str(key_file),
            "fs.gs.storage.root.url": f"{google.endpoint_url}/",
        }
    )
    assert rows(spark, url) == 4


def test_a_public_bucket_of_google(spark, hadoop, google):
    url = f"gs://{(bucket := google.new_bucket())}/weather"
    stored(Location(url, options=google.storage_options))
    hadoop(**{"fs.gs.auth.type": "UNAUTHENTICATED", "fs.gs.storage.root.url": google.endpoint_url})
    with raises(StorageError, status=401):
        rows(spark, url)
    google.publish(bucket)
    assert rows(spark, url) == 4
