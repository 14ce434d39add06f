"""Locations understand URLs and options, name mistakes, and show no secret."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path

import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.storage.address import parse_url
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.options import KNOWN_OPTIONS, parse_options, relevant_options
from icechunk_format.storage.protocol import CreateOnly
from icechunk_format.storage.remote.fsspec_store import FsspecStorage
from icechunk_format.storage.remote.obstore.clients import make_clients
from icechunk_format.storage.remote.obstore.store import ObjectStoreStorage

CANARY = "canary-3f7e-secret"


@pytest.mark.parametrize(
    ("url", "kind", "bucket", "path"),
    [
        ("/data/era5/", "local", "", "/data/era5"),
        ("file:///data/era5", "local", "", "/data/era5"),
        ("file:///data/with%20space", "local", "", "/data/with space"),
        ("file:/data/era5", "local", "", "/data/era5"),
        ("file://localhost/data", "local", "", "/data"),
        ("file:///data/a#b?c", "local", "", "/data/a#b?c"),
        ("/data/per%20cent", "local", "", "/data/per%20cent"),
        ("memory://a/b/", "memory", "", "a/b"),
        ("s3://bucket/a/b/", "s3", "bucket", "a/b"),
        ("S3A://bucket/a%20b", "s3", "bucket", "a%20b"),
        ("s3://bucket", "s3", "bucket", ""),
        ("gs://bucket/a", "gs", "bucket", "a"),
        ("gcs://bucket/a", "gs", "bucket", "a"),
        ("az://container/a", "az", "container", "a"),
        ("abfss://container@account.dfs.core.windows.net/a", "az", "container", "a"),
        ("https://host:8443/a/b/", "http", "", "a/b"),
        ("http://[::1]:8443/a/b/", "http", "", "a/b"),
        ("http://１２７。0.0.1/a", "http", "", "a"),
    ],
)
def test_urls(url, kind, bucket, path):
    address = parse_url(url)
    assert (address.kind, address.bucket, address.path) == (kind, bucket, path)
    assert parse_url(address.url).url == address.url


def test_relative_and_home_paths_are_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Location("data/../era5").url == str(tmp_path / "era5")
    assert Location("~/era5").url == str(tmp_path / "home" / "era5")


def test_one_place_has_one_spelling(tmp_path):
    assert Location(str(tmp_path)) == Location(f"file://{tmp_path}/")
    assert hash(Location("s3://b/x/")) == hash(Location("s3a://b/x"))
    options = {"KEY": "k", "Secret": "s", "endpoint-url": "http://h"}
    same = {"key": "k", "secret": "s", "endpointUrl": "http://h"}
    assert Location("s3://b", options=options) == Location("s3://b", options=same)
    assert Location("s3://b", options=options) != Location("s3://b")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "  ",
        "s3://",
        "s3:///path",
        "s3://bucket/../other",
        "s3://bucket/a//b",
        f"s3://user:{CANARY}@bucket/x",
        "https://",
        f"https://host/x?token={CANARY}",
        f"https://user:{CANARY}@host/x?y",
        "file://server/share",
        "memory://a/../b",
    ],
)
def test_urls_that_cannot_be(url):
    with pytest.raises(InvalidInputError) as caught:
        Location(url)
    assert CANARY not in str(caught.value)


def test_a_misspelt_option_names_the_nearest():
    with raises(InvalidInputError, option="reigon") as caught:
        Location("s3://b/x", options={"reigon": CANARY})
    assert CANARY not in str(caught.value)
    assert "region" in caught.value.facts["known"]
    with raises(InvalidInputError, option="acount_key"):
        Location("az://c/x", options={"acount_key": "x"})
    with raises(InvalidInputError, option="key", known=["follow_symlinks"]):
        Location("/data", options={"key": "x"})


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ({"AWS_ACCESS_KEY_ID": "x"}, {"key": "x"}),
        ({"secretAccessKey": "x"}, {"secret": "x"}),
        ({"session-token": "x"}, {"token": "x"}),
        ({"Endpoint": "x"}, {"endpoint_url": "x"}),
        ({"anonymous": "Yes"}, {"anon": "true"}),
        ({"force_path_style": "true"}, {"virtual_hosted_style": "false"}),
        ({"force_path_style": "0"}, {"virtual_hosted_style": "true"}),
        ({"concurrency": " 8 "}, {"concurrency": "8"}),
    ],
)
def test_other_libraries_words(given, canonical):
    assert dict(parse_options("s3", given)) == canonical


@pytest.mark.parametrize(
    "given",
    [
        {"anon": CANARY},
        {"concurrency": "0"},
        {"concurrency": CANARY},
        {"timeout": "-1"},
        {"key": "a", "AWS_ACCESS_KEY_ID": CANARY},
        {"client_kwargs": CANARY},
    ],
)
def test_option_values_that_cannot_be(given):
    with pytest.raises(InvalidInputError) as caught:
        parse_options("s3", given)
    assert CANARY not in str(caught.value)
    assert CANARY not in repr(caught.value.facts)


def test_every_option_is_accepted_under_its_own_name():
    numbers = {"concurrency", "max_gap_bytes", "timeout", "max_retries"}
    for kind, options in KNOWN_OPTIONS.items():
        for name in options:
            value = "8" if name in numbers else "true"
            assert dict(parse_options(kind, {name: value})) == {name: value}


def test_options_of_unknown_file_systems_are_passed_on():
    location = Location("sftp://host/x", options={"User-Name": "me", "port": "22"})
    assert dict(location.options) == {"User_Name": "me", "port": "22"}


def test_relevant_options_fit_a_kind():
    given = {"key": "k", "Endpoint-URL": "http://h", "follow_symlinks": "true"}
    assert relevant_options("s3", given) == {"key": "k", "Endpoint-URL": "http://h"}
    assert relevant_options("local", given) == {"follow_symlinks": "true"}
    assert relevant_options("memory", given) == {}


def test_a_location_travels_and_hides_its_options():
    location = Location("s3://b/x", client="fsspec", options={"key": "k-1234", "secret": CANARY})
    copy = pickle.loads(pickle.dumps(location))
    assert copy == location
    assert hash(copy) == hash(location)
    assert copy.options["secret"] == CANARY
    for text in (repr(location), str(location), f"{location}", repr(location.options)):
        assert CANARY not in text
        assert "k-1234" not in text
    assert "secret" in repr(location)
    with pytest.raises(AttributeError):
        location.url = "s3://other"


def test_user_and_password_of_a_url_are_not_shown():
    location = Location(f"https://user:{CANARY}@host/data")
    assert CANARY not in repr(location) + str(location)
    assert CANARY not in open_storage(location).root_url
    chained = Location(f"simplecache::https://user:{CANARY}@host/x?sig={CANARY}")
    assert CANARY not in repr(chained)


def test_clients():
    with raises(InvalidInputError, option="storage.client", found="boto"):
        Location("s3://b", client="boto")
    with raises(InvalidInputError, option="storage.client", found="obstore"):
        Location("/data", client="obstore")
    with raises(InvalidInputError, option="storage.client", found="obstore"):
        Location("sftp://host/x", client="obstore")


def test_opening_contacts_nobody():
    options = {"key": "k", "secret": "s", "endpoint_url": "http://192.0.2.1"}
    for client in ("obstore", "fsspec"):
        storage = open_storage(Location("s3://b", client=client, options=options))
        assert storage.root_url == "s3://b"
        assert not storage.is_read_only


def test_one_location_is_opened_once(tmp_path):
    assert open_storage(Location(str(tmp_path))) is open_storage(Location(f"{tmp_path}/"))
    assert open_storage(Location("memory://one")).put("a", b"1")
    assert open_storage(Location("memory://one")).get("a").data == b"1"


def test_a_scheme_that_nobody_knows():
    storage = open_storage(Location("nosuch://host/x"))
    with pytest.raises(UnsupportedError, match="nosuch"):
        storage.get("a")


def test_conditions_need_a_promise_where_nothing_enforces_them(tmp_path):
    storage = open_storage(Location(str(tmp_path), client="fsspec"))
    with raises(UnsupportedError, match=r"storage\.single_writer=true", key="repo"):
        storage.put("repo", b"", condition=CreateOnly())


# Google and Azure: without their servers, that the clients are made as the options say.


@pytest.fixture
def unchecked_endpoint(monkeypatch):
    monkeypatch.setattr(
        "icechunk_format.storage.remote.obstore.clients.check_reachable", lambda url, root_url: None
    )


def clients_of(url, **options):
    location = Location(url, options=options)
    return make_clients(location.address, location.checked_options)


@pytest.mark.usefixtures("unchecked_endpoint")
def test_azure_accounts():
    key = "Y2FuYXJ5LXNlY3JldA=="
    clients = clients_of("az://c/x", account_name="lab", account_key=key)
    assert clients.server == "https://lab.blob.core.windows.net"
    assert key in clients.secrets
    assert clients_of("abfs://c@lab.dfs.core.windows.net/x", anon="true").server == clients.server
    text = f"DefaultEndpointsProtocol=https;AccountName=lab;AccountKey={key};EndpointSuffix=x.org"
    connected = clients_of("az://c/x", connection_string=text)
    assert connected.server == "https://lab.blob.x.org"
    assert key in connected.secrets
    with raises(InvalidInputError, match=r"storage\.account_name", option="account_name"):
        clients_of("az://c/x")
    with raises(InvalidInputError, option="connection_string") as caught:
        clients_of("az://c/x", connection_string=CANARY)
    assert CANARY not in str(caught.value)


@pytest.mark.usefixtures("unchecked_endpoint")
@pytest.mark.parametrize(
    ("host", "server"),
    [
        ("lab.dfs.core.usgovcloudapi.net", "lab.blob.core.usgovcloudapi.net"),
        ("lab.blob.core.chinacloudapi.cn", "lab.blob.core.chinacloudapi.cn"),
        ("lab.z06.dfs.storage.azure.net", "lab.z06.blob.storage.azure.net"),
        ("onelake.dfs.fabric.microsoft.com", "onelake.blob.fabric.microsoft.com"),
        # A name that anyone can own gets no credentials.
        ("lab.dfs.core.windows.net.evil.org", "lab.blob.core.windows.net"),
        ("lab.dfs.fabric.microsoft.com.evil.org", "lab.blob.core.windows.net"),
    ],
)
def test_azure_clouds_have_their_own_hosts(host, server):
    assert clients_of(f"abfss://c@{host}/x", token=CANARY).server == f"https://{server}"
    endpoint = "http://127.0.0.1:9"
    found = clients_of(f"abfss://c@{host}/x", anon="true", endpoint_url=endpoint)
    assert found.server == endpoint


@pytest.mark.usefixtures("unchecked_endpoint")
def test_a_token_of_azure_is_a_secret():
    assert CANARY in clients_of("az://c/x", account_name="lab", token=CANARY).secrets
    location = Location("az://c/x", client="fsspec", options={"token": CANARY})
    with raises(InvalidInputError, match="storage.client=obstore", option="token") as caught:
        FsspecStorage(location.address, location.checked_options)
    assert CANARY not in str(caught.value)


@pytest.mark.usefixtures("unchecked_endpoint")
def test_google_tokens(tmp_path):
    assert clients_of("gs://b/x", token="anon").server == "https://storage.googleapis.com"
    assert clients_of("gs://b/x", anon="true", endpoint_url="http://127.0.0.1:9").server == (
        "http://127.0.0.1:9"
    )
    clients = clients_of("gs://b/x", token=CANARY)
    assert CANARY in clients.secrets
    with raises(InvalidInputError, match="does not exist", option="token") as caught:
        clients_of("gs://b/x", token=str(tmp_path / "none.json"))
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.usefixtures("unchecked_endpoint")
def test_other_clouds_refuse_nothing_at_opening():
    for url, options in (("gs://b/x", {"anon": "true"}), ("https://host/x", {})):
        location = Location(url, options=options)
        storage = ObjectStoreStorage(location.address, location.checked_options)
        assert isinstance(storage, ObjectStoreStorage)


def test_a_missing_package_is_named():
    if importlib.util.find_spec("gcsfs") is not None:
        pytest.skip("gcsfs is installed")
    location = Location("gs://b/x", client="fsspec", options={"anon": "true"})
    with pytest.raises(UnsupportedError, match="gcsfs"):
        FsspecStorage(location.address, location.checked_options)


def test_paths_are_text():
    assert Location(str(Path("/data"))).url == "/data"


@pytest.mark.parametrize(
    ("url", "advice"),
    [("dbfs:/mnt/era5", "'/dbfs/mnt/era5'"), ("s3:/bucket/era5", "'s3://bucket/era5'")],
)
def test_a_url_with_one_slash_is_no_local_folder(url: str, advice: str):
    with pytest.raises(InvalidInputError, match="one slash") as caught:
        parse_url(url)
    assert advice in str(caught.value)


@pytest.mark.parametrize("scheme", ["abfs", "abfss", "wasb", "wasbs", "WASBS"])
@pytest.mark.parametrize("host", ["dfs", "blob"])
def test_spellings_of_azure_name_container_and_account(scheme, host):
    found = parse_url(f"{scheme}://data@weather.{host}.core.windows.net/a/b")
    assert (found.kind, found.bucket, found.account, found.path) == ("az", "data", "weather", "a/b")


@pytest.mark.parametrize(
    ("spelling", "path"),
    [
        ("dbfs:/Volumes/main/raw/files/r", "/Volumes/main/raw/files/r"),
        ("dbfs:///Volumes/main/raw/files/r/", "/Volumes/main/raw/files/r"),
        ("file:/data/r", "/data/r"),
        ("file:///data/r", "/data/r"),
    ],
)
def test_spellings_of_local_paths(spelling, path):
    found = parse_url(spelling)
    assert (found.kind, found.url, found.path) == ("local", path, path)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3A"])
def test_spellings_of_s3(scheme):
    found = parse_url(f"{scheme}://bucket/a")
    assert (found.kind, found.url, found.bucket) == ("s3", "s3://bucket/a", "bucket")
