"""A write of virtual references adds a container for each bucket, host or folder that lacks one."""

import pyarrow as pa
import pytest
from helpers.builder import new_repository
from helpers.raised import raises

from icechunk_format.encoding.config.config import VirtualChunkContainer
from icechunk_format.errors import InvalidInputError
from icechunk_format.groups.changing.containers import (
    add_containers,
    authorized_prefixes,
    check_prefix,
    outside_of,
    prefixes_of,
)


def added(prefixes, authorized=(), **options):
    """Return the kind and the options of each added container, by prefix."""
    repository = new_repository()
    add_containers(repository, prefixes, authorized=authorized, virtual_options=options)
    found = repository.config.virtual_chunk_containers
    return {one.url_prefix: (one.store_kind, dict(one.store_options)) for one in found}


@pytest.mark.parametrize(
    ("prefix", "options", "expected"),
    [
        ("s3://b/", {}, ("s3", {"region": None, "endpoint_url": None, "allow_http": False})),
        (
            "s3://b/",
            {"region": "eu-west-1", "anon": "true"},
            ("s3", {"region": "eu-west-1", "anonymous": True}),
        ),
        (
            "s3://b/",
            {"endpoint_url": "http://minio:9000"},
            (
                "s3_compatible",
                {
                    "endpoint_url": "http://minio:9000",
                    "force_path_style": True,
                    "allow_http": True,
                },
            ),
        ),
        (
            "s3://b/",
            {"endpoint_url": "https://minio", "virtual_hosted_style": "true"},
            ("s3_compatible", {"force_path_style": False, "allow_http": False}),
        ),
        ("s3://b/", {"requester_pays": "true"}, ("s3", {"requester_pays": True})),
        ("gs://b/", {}, ("gcs", {})),
        ("az://b/", {"account_name": "me"}, ("azure", {"account": "me"})),
        ("https://host/", {}, ("http", {})),
        ("file:///data/", {}, ("local_file_system", {"path": "/data/"})),
    ],
)
def test_a_container_has_the_options_of_its_storage(prefix, options, expected):
    [(found, (kind, stored))] = added([prefix], **options).items()
    assert (found, kind) == (prefix, expected[0])
    assert expected[1].items() <= stored.items()


def test_storage_that_a_configuration_cannot_name_gets_no_container():
    assert added(["memory://b/", "s3://b/"]).keys() == {"s3://b/"}
    repository = new_repository()
    before = len(list(repository.operations()))
    add_containers(repository, ["memory://b/"], authorized=(), virtual_options={})
    assert len(list(repository.operations())) == before


def test_the_shorter_prefix_covers_the_longer():
    assert set(added(["s3://b/deep/", "s3://b/", "s3://c/"])) == {"s3://b/", "s3://c/"}
    # Folders of tasks are joined, but authorized ones stay as they are given.
    folders = ["file:///data/a b/", "file:///data/c/"]
    assert set(added(folders)) == {"file:///data/"}
    for given in ("file:///data/a%20b", "file:///data/a%20b/", "file:///data/a b"):
        assert set(added(folders, [given])) == {"file:///data/a b/", "file:///data/c/"}
    folders = ["file:///data/X/", "file:///data/c/"]
    assert set(added(folders, ["file:///data/X/"])) == set(folders)


def test_authorized_prefixes_match_whole_names_with_and_without_a_slash():
    locations = pa.array(["s3://b/a/x", "s3://b/ab/x", "file:///d%20e/x"])
    for given, found, left in (
        ("s3://b/a", {"s3://b/a/"}, ["s3://b/ab/x", "file:///d%20e/x"]),
        ("s3://b/a/", {"s3://b/a/"}, ["s3://b/ab/x", "file:///d%20e/x"]),
        ("file:///d e", {"file:///d e/"}, ["s3://b/a/x", "s3://b/ab/x"]),
        ("file:///d%20e/", {"file:///d e/"}, ["s3://b/a/x", "s3://b/ab/x"]),
        ("s3://b/aX", set(), locations.to_pylist()),
        ("s3://nothing", set(), locations.to_pylist()),
    ):
        prefixes, others = authorized_prefixes(locations, [given])
        assert (prefixes, others.to_pylist()) == (found, left)


def test_locations_outside_of_containers():
    containers = [
        VirtualChunkContainer(url_prefix="s3://b/a/", store_kind="s3"),
        VirtualChunkContainer(url_prefix="s3://c/", store_kind="s3", name="c"),
    ]
    locations = ["s3://b/a/x", "s3://b/x", "vcc://c/x", "vcc://None/x", "vcc://other/x", "s3://c/x"]
    left = ["s3://b/x", "vcc://None/x", "vcc://other/x"]
    assert outside_of(pa.array(locations), containers).to_pylist() == left
    assert outside_of(pa.array(locations), []).to_pylist() == locations


def test_buckets_hosts_and_the_folder_of_files():
    locations = [
        "s3://b/x/y",
        "s3://b/z",
        "https://host:1/x",
        "file:///d%20e/f/x",
        "file:///d%20e/fg",
    ]
    assert prefixes_of(pa.array(locations)) == {"s3://b/", "https://host:1/", "file:///d e/"}
    assert prefixes_of(pa.array(["file:///d/f/x"])) == {"file:///d/f/"}
    assert prefixes_of(pa.array([], pa.string())) == set()


def test_folders_whose_name_has_another_meaning_in_a_url_are_refused():
    check_prefix("file:///a b/")
    for name in ("a#b", "a?b", "a%20b"):
        with raises(InvalidInputError, place=f"file:///{name}/"):
            check_prefix(f"file:///{name}/")
