"""The entries of a catalog are checked: names, paths, options, credentials and tags."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.catalog import Entry, entries_of

PATH = "s3://bucket/weather"


def one(given, base=""):
    [entry] = entries_of({"tables": {"weather": given}}, "the catalog", base)
    return entry


def test_an_entry_has_a_path_and_options_of_reading():
    found = one(
        {
            "path": f" {PATH} ",
            "variables": ["t2m"],
            "as_of": "2024-07-01",
            "credentials": "provider",
            "storage": {"region": "eu", "anon": False},
            "virtual": {"authorize": "s3://a/", "storage": {"region": "us"}},
            "comment": "Hourly",
            "tag": None,
        }
    )
    assert found == Entry(
        name="weather",
        path=PATH,
        options={
            "variables": ["t2m"],
            "as_of": "2024-07-01",
            "credentials": "provider",
            "storage.region": "eu",
            "storage.anon": False,
            "virtual.authorize": "s3://a/",
            "virtual.storage.region": "us",
        },
        comment="Hourly",
    )
    assert found.is_pinned
    assert not one(PATH).is_pinned
    assert one({"path": PATH, "credentials": "anon"}).options == {"credentials": "anon"}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("weather", "s3://company/lake/weather"),
        ("./a/b#history", "s3://company/lake/a/b#history"),
        ("/data/weather", "/data/weather"),
        ("~/weather", "~/weather"),
        ("file:/data", "file:/data"),
        ("gs://b/r", "gs://b/r"),
        ("simplecache::s3://b/r", "simplecache::s3://b/r"),
    ],
)
def test_relative_paths_begin_at_the_catalog(path, found):
    assert one(path, "s3://company/lake").path == found
    assert one(path).path == path


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"path": PATH, "variabels": "t2m"}, "did you mean 'variables'"),
        ({"path": PATH, "message": "x"}, "does not apply to read"),
        ({"path": PATH, "tag": "v1", "branch": "main"}, "exclude one another"),
        ({"pth": PATH}, "the key 'path' is missing: .*, and not 'pth'"),
        ({"location": PATH}, "the key 'path' is missing: .*, and not 'location'"),
        ({"path": ["a", "b"]}, "'path' must be a string, .*, but is a list"),
        ({"path": " "}, "'path' must be a string, .*, but is empty"),
        ("$HOME/weather", "the path contains '\\$HOME'.* variables of the environment"),
        ("s3://b/${NAME}/x", "the path contains '\\${NAME}'"),
        ("s3://b/{{ name }}/x", "the path contains '{{ name }}'"),
        ("%HOME%/weather", "the path contains '%HOME%'"),
        (5, "an entry has keys"),
        (None, "an entry has keys"),
        ({"path": PATH, "comment": 5}, "comment must be a string"),
        ({"path": PATH, "tags": 5}, "tags must be a list"),
        ({"path": PATH, "tags": [5]}, "tags must be a list"),
        ({"path": PATH, 5: "x"}, "unknown option '5'"),
    ],
)
def test_wrong_entries_are_named(given, words):
    with pytest.raises(InvalidInputError, match=words) as caught:
        one(given)
    assert "the catalog has a table that cannot be used: 'weather': " in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"storage.secret": "canary"},
        {"storage_key": "canary"},
        {"storage": {"aws_session_token": "canary"}},
        {"virtual": {"storage": {"sas_token": "canary"}}},
    ],
)
def test_a_catalog_holds_no_credentials(options):
    with pytest.raises(InvalidInputError, match="a catalog holds no credentials") as caught:
        one({"path": PATH, **options})
    assert "canary" not in str(caught.value)


def test_a_path_may_have_characters_of_variables():
    for path in ("s3://b/a$b", "s3://b/100%", "s3://b/%20x", "s3://b/{a}", Path("/data/w")):
        assert one(path).path == str(path)
    assert one({"path": Path("/data/w")}).path == "/data/w"


def test_the_token_anon_is_no_credential():
    assert one({"path": "gs://b/r", "storage.token": "anon"}).options == {"storage.token": "anon"}


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a@v1", "a`", "x" * 129, 5, None])
def test_names_are_words(name):
    with pytest.raises(InvalidInputError, match="a name consists of"):
        entries_of({"tables": {name: PATH}}, "the catalog")


def test_all_wrong_entries_are_named_at_once():
    tables = {"a": {"path": PATH, "x": 1}, "b": {}, "Weather": PATH, "weather": PATH}
    with pytest.raises(InvalidInputError, match="has 3 tables") as caught:
        entries_of({"tables": tables}, "the catalog")
    for words in ("'a': unknown", "'b': the key 'path'", "'weather': the name is the same as"):
        assert words in str(caught.value)
    assert len(caught.value.facts["problems"]) == 3


@pytest.mark.parametrize("tree", [None, [], "text", {}, {"weather": PATH}, {"tables": ["a"]}])
def test_a_catalog_has_tables(tree):
    with raises(InvalidInputError, option="catalog", match="must have the key 'tables'"):
        entries_of(tree, "the catalog")


def test_unknown_keys_of_the_catalog_are_refused():
    with raises(InvalidInputError, option="credentials", match="unknown key 'credentials'"):
        entries_of({"tables": {}, "credentials": "weather"}, "the catalog")
    assert entries_of({"tables": {}, "comment": "Nothing yet"}, "the catalog") == []


def test_tags_have_names_of_their_own():
    found = one({"path": PATH, "tags": ["v1", "v2"], "branch": "dev", "variables": "t2m"})
    assert found.tags == ("v1", "v2")
    tagged = found.at_tag("v1")
    assert (tagged.name, tagged.tags) == ("weather@v1", ())
    assert tagged.options == {"variables": "t2m", "tag": "v1"}
    assert one({"path": PATH, "tags": True}).tags == "all"
    assert one({"path": PATH, "tags": "v1"}).tags == ("v1",)
    assert one({"path": PATH, "tags": False}).tags == ()


def test_options_of_the_entry_replace_those_of_all():
    found = one({"path": PATH, "asOf": "2024-01-01"})
    changed = found.with_options({"as_of": "2025-01-01", "layout": "chunks", "group": None})
    assert changed.options == {"asOf": "2024-01-01", "layout": "chunks"}
