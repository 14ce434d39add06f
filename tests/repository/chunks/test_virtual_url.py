"""URLs of virtual chunks are parsed in one way, so that none escapes its prefix."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.repository.chunks import shown
from icechunk_format.repository.chunks.virtual_url import MalformedUrlError, parse_url


@pytest.mark.parametrize(
    ("prefix", "url"),
    [
        ("s3://bucket/dir/", "s3://bucket/dir/file.nc"),
        ("s3://bucket/dir", "s3://bucket/dir/file.nc"),
        ("s3://bucket/dir", "s3://bucket/dir"),
        ("s3://bucket", "s3://bucket/anything/below"),
        ("s3://bucket/", "s3://bucket/anything"),
        ("S3://bucket/", "s3://bucket/anything"),
        ("s3://bucket/a b/", "s3://bucket/a%20b/file"),
        ("s3://bucket/a%20b/", "s3://bucket/a b/file"),
        ("https://Example.org/data/", "https://example.org:443/data/x"),
        ("http://127.0.0.1:9000/", "http://127.0.0.1:9000/x"),
        ("file:///data/", "file://localhost/data/x"),
        ("file:///data/", "file:////data//x"),
        ("file:///", "file:///etc/passwd"),
        (
            "abfs://container@account.dfs.core.windows.net/",
            "abfs://container@account.dfs.core.windows.net/x",
        ),
    ],
)
def test_a_prefix_covers_what_lies_below_it(prefix, url):
    assert parse_url(prefix).covers(parse_url(url))


@pytest.mark.parametrize(
    ("prefix", "url"),
    [
        ("s3://bucket", "s3://bucket-evil/x"),
        ("s3://bucket/dir", "s3://bucket/directory/x"),
        ("s3://bucket/dir/", "s3://bucket/dir"),
        ("s3://bucket/dir/", "s3://bucket/x"),
        ("s3://bucket/", "gs://bucket/x"),
        ("s3://Bucket/", "s3://bucket/x"),
        ("https://example.org/", "http://example.org/x"),
        ("https://example.org/", "https://example.org.evil.net/x"),
        ("https://example.org/", "https://example.org:8443/x"),
        ("file:///data/", "file:///database/x"),
        ("s3://bucket/a%2520b/", "s3://bucket/a%20b/x"),
    ],
)
def test_a_prefix_does_not_cover_what_only_looks_alike(prefix, url):
    assert not parse_url(prefix).covers(parse_url(url))


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/dir/../secret",
        "s3://bucket/dir/%2e%2e/secret",
        "s3://bucket/dir/%2E./secret",
        "s3://bucket/dir/..%2Fsecret",
        "s3://bucket/./x",
        "file:///data/..",
        "https://trusted.org@evil.org/x",
        "https://user:password@evil.org/x",
        "s3://bucket/a\\..\\b",
        "s3://bucket/a%5C..%5Cb",
        "s3://bucket/a%00b",
        "s3://bucket/a\nb",
        "s3://bucket/%ff",
        "s3:///key",
        "https:///x",
        "file://server/share/x",
        "s3://bucket::http://169.254.169.254/x",
        "/etc/passwd",
        "relative/path",
        "",
        "//host/x",
        "1s3://bucket/x",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(url):
    with pytest.raises(MalformedUrlError):
        parse_url(url)


def test_a_query_and_a_fragment_cut_the_key_and_encoded_ones_do_not():
    assert parse_url("s3://bucket/a?versionId=3").path == "/a"
    assert parse_url("s3://bucket/a#part").path == "/a"
    assert parse_url("s3://bucket/a%3Fb%23c%25d").path == "/a?b#c%d"


@given(st.text(max_size=30), st.text(alphabet="./%2eEfF\\?#@:ab", max_size=20))
def test_no_url_below_a_prefix_escapes_it(authority, path):
    prefix = parse_url("s3://bucket/safe/")
    for url in (f"s3://bucket/safe/{path}", f"s3://{authority}/{path}"):
        try:
            parts = parse_url(url)
        except MalformedUrlError:
            continue
        if prefix.covers(parts):
            assert parts.authority == "bucket"
            assert parts.path.startswith("/safe/")
            assert ".." not in parts.path.split("/")


def test_hosts_are_compared_as_they_are_connected_to():
    spelled = parse_url("http://１２７。0.0.１:80/x")
    assert spelled.authority == "127.0.0.1"
    assert parse_url("https://münchen.example/") == parse_url("https://XN--mnchen-3ya.example:443/")


@pytest.mark.parametrize(
    "host",
    ["%31%32%37.0.0.1", "a b.example", "h:99999", "h:x", "a..b", "[::1%25eth0]", "℀"],
)
def test_hosts_that_a_client_could_read_in_another_way_are_refused(host):
    with pytest.raises(MalformedUrlError):
        parse_url(f"http://{host}/x")


def test_a_location_is_shown_without_signature_and_password():
    assert shown("https://host/file?X-Amz-Signature=secret") == "https://host/file"
    assert "secret" not in shown("https://user:secret@host/file")
    assert len(shown("s3://bucket/" + "x" * 5000)) < 400
