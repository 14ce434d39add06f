"""References of a file stay below the files of the call and the authorized prefixes."""

from __future__ import annotations

import json

import pytest
from helpers.archives.running import virtualize
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.repository import Repository

pytest.importorskip("virtualizarr")
pytestmark = [
    pytest.mark.needs_reference,
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]


@pytest.fixture
def folders(tmp_path):
    """Return a folder for references, and another one with a file that they name."""
    (tmp_path / "web").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "secret").write_bytes(b"PRIVATEKEY")
    return tmp_path / "web", tmp_path / "home"


def refer(folder, *urls, offset=0, length=10):
    array = {
        "zarr_format": 2,
        "shape": [10 * len(urls)],
        "chunks": [10],
        "dtype": "|u1",
        "compressor": None,
        "fill_value": 0,
        "order": "C",
        "filters": None,
    }
    refs = {
        ".zgroup": '{"zarr_format": 2}',
        "v/.zarray": json.dumps(array),
        "v/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}',
    }
    refs |= {f"v/{number}": [url, offset, length] for number, url in enumerate(urls)}
    (folder / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    return str(folder / "refs.json")


@pytest.mark.parametrize(
    "escape",
    [
        "file://{home}/secret",
        "file://{web}/../home/secret",
        "file://{web}/%2e%2e/home/secret",
        "file://{web}/..%2Fhome%2Fsecret",
        "file://{home}%2Fsecret",
        "s3://another-bucket/secret",
    ],
)
def test_references_to_other_folders_are_refused_by_name(escape, folders, tmp_path):
    web, home = folders
    (web / "own").write_bytes(b"0123456789")
    url = escape.format(web=web, home=home)
    file = refer(web, f"file://{web}/own", url)
    with raises(InvalidInputError) as caught:
        virtualize(file, tmp_path / "repository", concat_dim="x")
    [row] = caught.value.facts["report"].to_pylist()
    assert row["file"].endswith("refs.json")
    assert row["array"] == "v"
    assert "virtual_authorize" in row["difference"]
    assert not (tmp_path / "repository").exists()


def test_a_refused_file_adds_no_container_and_no_place(folders, tmp_path):
    web, home = folders
    (web / "own").write_bytes(b"0123456789")
    good = tmp_path / "web" / "good"
    good.mkdir()
    taken = refer(good, f"file://{web}/good/own")
    (good / "own").write_bytes(b"0123456789")
    bad = refer(web, f"file://{home}/secret")
    done = virtualize([taken, bad], tmp_path / "repository", concat_dim="x", on_mismatch="skip")
    assert done.files_added == 1
    containers = Repository.open(str(tmp_path / "repository")).config.virtual_chunk_containers
    assert {*done.places, *(one.url_prefix for one in containers)} == {f"file://{web}/"}


def test_an_authorized_folder_may_be_referred_to(folders, tmp_path):
    web, home = folders
    file = refer(web, f"file://{home}/secret")
    how = {"concat_dim": "x", "authorize": (f"file://{home}/",)}
    done = virtualize(file, tmp_path / "repository", **how)
    assert done.references == 1


@pytest.mark.parametrize(
    ("offset", "length"), [(2**63, 10), (2**64, 10), (0, 2**63), (2**63 - 1, 10), (-1, 10)]
)
def test_impossible_ranges_are_refused_by_name(offset, length, folders, tmp_path):
    web, _ = folders
    (web / "own").write_bytes(b"0123456789")
    file = refer(web, f"file://{web}/own", offset=offset, length=length)
    with raises(InvalidInputError) as caught:
        virtualize(file, tmp_path / "repository", concat_dim="x")
    [row] = caught.value.facts["report"].to_pylist()
    assert (row["status"], row["file"].endswith("refs.json")) == ("refused", True)
