"""Virtual chunks are fetched only where the user agreed, with options of their container."""

import pytest
from helpers.raised import raises

from icechunk_format.encoding.config.config import VirtualChunkContainer
from icechunk_format.errors import (
    FormatError,
    InvalidInputError,
    NotFoundError,
    UnauthorizedVirtualChunkError,
    UnsupportedError,
)
from icechunk_format.repository.chunks import VirtualResolver
from icechunk_format.repository.chunks.virtual import check_virtual_options, parse_authorized


def container(url_prefix, store_kind="s3", name=None, **store_options):
    return VirtualChunkContainer(
        name=name, url_prefix=url_prefix, store_kind=store_kind, store_options=store_options
    )


def resolved(location, authorized, containers=(), **options):
    found = VirtualResolver(containers, authorized, options).resolve(location)
    return found.location.url, found.object_key, dict(found.location.options)


def test_a_bucket_is_the_storage_and_the_decoded_path_the_key():
    assert resolved("S3://bucket/a%20b/c%3F.nc?version=1", ["s3://bucket/"]) == (
        "s3://bucket",
        "a b/c?.nc",
        {},
    )


def test_the_storage_of_a_file_is_the_authorized_folder(tmp_path):
    url = (tmp_path / "in" / "x y.nc").as_uri()
    folder = tmp_path.as_uri()
    assert resolved(url, [folder])[:2] == (str(tmp_path), "in/x y.nc")
    assert resolved(url, [folder + "/"])[:2] == (str(tmp_path), "in/x y.nc")
    assert resolved(url, [folder, folder + "/in"])[:2] == (str(tmp_path / "in"), "x y.nc")
    assert resolved(url, [url])[:2] == (str(tmp_path / "in"), "x y.nc")
    assert resolved("file:///etc/hosts", ["file:///"])[:2] == ("/", "etc/hosts")


def test_a_folder_with_signs_of_urls_in_its_name_stays_itself(tmp_path):
    folder = tmp_path / "50% #1?"
    url = (folder / "x.nc").as_uri()
    assert resolved(url, [folder.as_uri()])[:2] == (str(folder), "x.nc")


def test_a_named_location_is_resolved_by_its_container():
    containers = [container("s3://bucket/deep/", name="sources")]
    assert resolved("vcc://sources/a/b.nc", ["s3://bucket/deep"], containers)[:2] == (
        "s3://bucket",
        "deep/a/b.nc",
    )
    with raises(
        NotFoundError,
        match="named containers: sources",
        kind="virtual chunk container",
        name="others",
    ):
        resolved("vcc://others/a", ["s3://bucket/"], containers)


@pytest.mark.parametrize("rest", ["../secret", "%2e%2e/secret", "a/../../../x"])
def test_a_named_location_cannot_leave_its_container(rest):
    containers = [container("s3://bucket/deep/", name="sources")]
    with pytest.raises(UnauthorizedVirtualChunkError):
        resolved(f"vcc://sources/{rest}", ["s3://bucket/deep/"], containers)


def test_the_longest_prefix_decides_on_the_options():
    containers = [
        container("s3://bucket/", region="us-east-1"),
        container("s3://bucket/eu/", region="eu-west-1"),
        container("s3://bucket/e", region="ignored-without-slash"),
    ]
    authorized = ["s3://bucket"]
    assert resolved("s3://bucket/eu/x", authorized, containers)[2] == {"region": "eu-west-1"}
    assert resolved("s3://bucket/ex", authorized, containers)[2] == {"region": "us-east-1"}
    assert resolved("s3://bucket/eux", authorized, containers)[2] == {"region": "us-east-1"}


def test_a_container_is_found_for_encoded_and_for_plain_spellings():
    for prefix in ("s3://bucket/two words/", "s3://bucket/two%20words/"):
        containers = [container(prefix, region="eu-west-1")]
        assert resolved("s3://bucket/two%20words/x", ["s3://bucket"], containers) == (
            "s3://bucket",
            "two words/x",
            {"region": "eu-west-1"},
        )


def test_a_container_authorizes_nothing():
    containers = [container("file:///etc/", "local_file_system", name="etc")]
    for location in ("file:///etc/passwd", "vcc://etc/passwd"):
        with pytest.raises(UnauthorizedVirtualChunkError) as caught:
            resolved(location, ["s3://bucket/"], containers)
        assert location in str(caught.value)
        assert str(caught.value).splitlines()[-1] == (
            "to allow it, set the option virtual.authorize=file:///etc/"
        )


def test_an_error_outside_of_containers_suggests_the_folder():
    with raises(UnauthorizedVirtualChunkError, url_prefix="s3://bucket/dir/") as caught:
        resolved("s3://bucket/dir/file?X-Amz-Signature=abc", [])
    assert str(caught.value).endswith("virtual.authorize=s3://bucket/dir/")
    assert "abc" not in str(caught.value)


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/iam",
        "http://localhost:8080/admin",
        "http://127.0.0.1/",
        "file:///etc/passwd",
        "s3://bucket-evil/x",
        "https://bucket/x",
        "memory://bucket/x",
    ],
)
def test_other_places_are_never_covered_by_a_bucket(location):
    with pytest.raises(UnauthorizedVirtualChunkError):
        resolved(location, ["s3://bucket", "https://data.example.org/"])


@pytest.mark.parametrize(
    "prefix", ["s3://", "s3", "/data", "https://", "*", "", "file:///a/../b", "https://u:p@host/"]
)
def test_an_authorized_prefix_must_name_a_place(prefix):
    with pytest.raises(InvalidInputError, match=r"virtual\.authorize"):
        parse_authorized([prefix])


def test_options_of_containers_are_translated_and_the_users_win():
    s3 = container(
        "s3://bucket/",
        "s3_compatible",
        region="eu-west-1",
        endpoint_url="http://minio.example.org:9000",
        anonymous=True,
        allow_http=True,
        force_path_style=True,
        requester_pays=False,
        network_stream_timeout_seconds=60,
        checksum_algorithm=None,
    )
    endpoint = "http://minio.example.org:9000"
    assert resolved("s3://bucket/x", ["s3://bucket", endpoint], [s3])[2] == {
        "region": "eu-west-1",
        "endpoint_url": endpoint,
        "anon": "true",
        "virtual_hosted_style": "false",
        "requester_pays": "false",
    }
    own = resolved(
        "s3://bucket/x",
        ["s3://bucket", endpoint],
        [s3],
        aws_access_key_id="K",
        secret="S",
        region="x",
    )[2]
    assert own["key"] == "K"
    assert own["region"] == "x"
    assert "anon" not in own
    assert own["endpoint_url"] == endpoint


def test_a_container_without_an_endpoint_leaves_the_style_of_requests_to_the_user():
    # Its default is for AWS. A server on an address has no hosts of buckets.
    amazon = container("s3://bucket/", "s3", region="us-east-1", force_path_style=False)
    assert resolved("s3://bucket/x", ["s3://bucket"], [amazon])[2] == {"region": "us-east-1"}
    given = resolved("s3://bucket/x", ["s3://bucket"], [amazon], virtual_hosted_style="true")
    assert given[2]["virtual_hosted_style"] == "true"
    endpoint = "https://s3.example.org"
    other = container("s3://bucket/", "s3", endpoint_url=endpoint, force_path_style=False)
    kept = resolved("s3://bucket/x", ["s3://bucket", endpoint], [other])[2]
    assert kept["virtual_hosted_style"] == "true"


def test_options_of_other_stores():
    assert resolved(
        "gs://b/x", ["gs://b"], [container("gs://b/", "gcs", google_skip_signature="true")]
    )[2] == {"anon": "true"}
    assert resolved(
        "az://c/x", ["az://c"], [container("az://c/", "azure", account="a", access_key="stolen")]
    )[2] == {"account_name": "a"}
    assert resolved(
        "tigris://b/x", ["tigris://b"], [container("tigris://b/", "tigris", region=None)]
    ) == ("s3://b", "x", {"endpoint_url": "https://t3.storage.dev"})
    assert resolved("https://h.org/x", ["https://h.org"], region="eu", timeout="5")[2] == {
        "timeout": "5"
    }


ENDPOINTS = {
    "s3": ("s3://bucket", "s3_compatible", "endpoint_url"),
    "gs": ("gs://bucket", "gcs", "google_base_url"),
    "az": ("az://bucket", "azure", "azure_endpoint"),
    "other": ("r2://bucket", "s3_compatible", "endpoint_url"),
    "tigris": ("tigris://bucket", "tigris", "endpoint_url"),
}


@pytest.mark.parametrize("kind", ENDPOINTS)
@pytest.mark.parametrize(
    "endpoint", ["https://stranger.example", "http://169.254.169.254", "http://localhost:900"]
)
@pytest.mark.parametrize("own", [{}, {"anon": "true"}, {"key": "k", "secret": "s", "token": "t"}])
def test_an_endpoint_of_a_container_needs_the_word_of_the_user(kind, endpoint, own):
    bucket, store, word = ENDPOINTS[kind]
    containers = [container(f"{bucket}/", store, **{word: endpoint, "anonymous": "true"})]
    elsewhere = [bucket, "https://stranger.example.org", f"{endpoint}/deeper", f"{endpoint}9"]
    with raises(UnauthorizedVirtualChunkError, endpoint_url=endpoint):
        resolved(f"{bucket}/x", elsewhere, containers, **own)
    by_option = resolved(f"{bucket}/x", [bucket], containers, endpoint_url=endpoint, **own)
    by_prefix = resolved(f"{bucket}/x", [bucket, endpoint], containers, **own)
    assert by_option[2]["endpoint_url"] == by_prefix[2]["endpoint_url"] == endpoint
    another = "https://own.example"
    assert (
        resolved(f"{bucket}/x", [bucket], containers, endpoint_url=another)[2]["endpoint_url"]
        == another
    )


def test_tigris_is_an_endpoint_that_its_scheme_names():
    tigris = container("s3://b/", "tigris")
    with pytest.raises(UnauthorizedVirtualChunkError):
        resolved("s3://b/x", ["s3://b"], [tigris])


def test_an_endpoint_that_is_no_url_is_refused():
    containers = [container("s3://bucket/", endpoint_url="//evil")]
    with raises(UnauthorizedVirtualChunkError, endpoint_url="//evil"):
        resolved("s3://bucket/x", ["s3://bucket"], containers)


def test_a_location_without_an_object_is_an_error_of_the_format():
    with raises(FormatError, match="names no object", object_key="s3://bucket/", field="location"):
        resolved("s3://bucket/", ["s3://bucket"])


def test_keys_that_no_client_can_address_are_unsupported():
    with pytest.raises(UnsupportedError, match="empty segment"):
        resolved("s3://bucket/a//b", ["s3://bucket"])


def test_an_unknown_virtual_option_is_named_with_the_nearest_one():
    check_virtual_options({"region": "x", "account_name": "y"}, ["s3://bucket"])
    with raises(InvalidInputError, match=r"did you mean storage\.region", option="regoin"):
        check_virtual_options({"regoin": "x"}, ["s3://bucket"])
    check_virtual_options({"host": "x"}, ["ftp://host/"])
