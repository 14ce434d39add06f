"""Catalogs are dictionaries, files of YAML or JSON, and folders of repositories."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.tables.catalog import checked_entries, facts_of, read_catalog
from icechunk_format.tables.catalog.reading import parse_alone, parsed_catalog
from icechunk_format.tables.writing.in_process import write_table

YAML = """
comment: The tables of the company
tables:
  weather: {path: weather, variables: [v], comment: Hourly}
  other:
    path: s3://other/r
    storage: {region: eu}
"""


def write(path, rows=3):
    table = pa.table({"x": pa.array(range(rows), pa.int32()), "v": [1.0] * rows})
    write_table(str(path), table, WriteOptions(mode="append", dims=("x",)))
    return Repository.open(str(path))


def put(folder, name, text):
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize("name", ["catalog.yaml", "catalog.yml", "CATALOG.YAML", "catalog.json"])
def test_a_file_is_yaml_or_json(tmp_path, name):
    text = YAML
    if name.endswith("json"):
        text = json.dumps(parsed_catalog(YAML.encode(), "c"))
    weather, other = read_catalog(put(tmp_path, name, text))
    assert (weather.name, weather.path) == ("weather", f"{tmp_path}/weather")
    assert weather.options == {"variables": ["v"]}
    assert (other.path, other.options) == ("s3://other/r", {"storage.region": "eu"})


def test_options_of_the_storage_are_for_the_catalog_and_tables_beside_it(tmp_path):
    path = put(tmp_path, "c.yaml", YAML)
    given = {"storage.follow_symlinks": "true", "layout": "chunks"}
    weather, other = read_catalog(path, given)
    assert weather.options == {**given, "variables": ["v"]}
    assert other.options == {"layout": "chunks", "storage.region": "eu"}
    [inside] = read_catalog({"tables": {"a": "s3://b/r"}}, {"credentials": "weather"})
    assert inside.options == {"credentials": "weather"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tables: {a: x, a: y}", "the key 'a' is given twice"),
        ("tables:\n  a: x\n  b: y\n  a: z\n", "the key 'a' is given twice"),
        ('{"tables": {"a": "x", "a": "y"}}', "the key 'a' is given twice"),
        ("tables: {a: &a {path: x}, b: *a}", "aliases are not allowed"),
        ("tables: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("tables: [", "is not YAML or JSON"),
        ('{"tables": ', "is not YAML or JSON"),
        ("[" * 100_000, "is not YAML or JSON"),
        ("\x00", "is not YAML or JSON"),
        ("", "must have the key 'tables'"),
        ("tables:\n\ta: x\n", "line 2, column 1; YAML is indented with spaces"),
        ("tables: {2024-07-01: x}", "'2024-07-01': a name consists of letters"),
        ("tables: {on: x}", "True of type bool: a name .* in quotes"),
    ],
)
def test_wrong_files_are_refused(tmp_path, text, words):
    with raises(InvalidInputError, option="catalog", match=words):
        read_catalog(put(tmp_path, "c.yaml", text))


@pytest.mark.parametrize(
    "text",
    [
        "tables: {a: {path: x, storage.secret: 'canary}}\n",
        "tables:\n  a:\n    path: x\n    storage.secret: canary: b\n",
        "tables: {a: {path: x, [a, canary]: 3}}\n",
        "tables: {a: {path: x, path: y, secret: canary}}\n",
        "tables: {a: {path: x, secret: !vault canary}}\n",
        "tables: {a: {path: x, secret: canary\n",
        "tables: {a: {path: x, secret: canary}}\n---\nb: 1\n",
        "tables: {a: {path: x, secret: canary, b: *none}}\n",
        "\tsecret: canary\n",
    ],
)
def test_errors_of_a_file_name_the_place_and_quote_no_line(tmp_path, text):
    with raises(InvalidInputError, option="catalog") as caught:
        read_catalog(put(tmp_path, "c.yaml", text))
    assert "canary" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "aliases" in str(caught.value) or ", line " in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "tables:\n  2024: {path: x, tag: 1.10}\n  b: {path: x, tag: 2024-07-01}\n"
        "  c: {path: x, isel: {t: 010}}\n",
        '{"tables": {"2024": {"path": "x", "tag": 1.10}, "b": {"path": "x", "tag": "2024-07-01"},'
        ' "c": {"path": "x", "isel": {"t": "010"}}}}',
    ],
)
def test_numbers_and_dates_are_read_as_they_are_written(tmp_path, text):
    found = {one.name: one.options for one in read_catalog(put(tmp_path, "c.yaml", text))}
    assert found == {
        "2024": {"tag": "1.10"},
        "b": {"tag": "2024-07-01"},
        "c": {"isel": {"t": "010"}},
    }


def test_a_file_is_limited_in_size(tmp_path):
    with raises(InvalidInputError, option="catalog", match="split it"):
        read_catalog(put(tmp_path, "c.yaml", " " * (5 << 20)))


def test_missing_catalogs_are_named(tmp_path):
    with pytest.raises(NotFoundError, match=r"c\.yaml"):
        read_catalog(str(tmp_path / "c.yaml"))
    with raises(NotFoundError, kind="catalog", match="contains no repository"):
        read_catalog(str(tmp_path / "none"))
    with raises(InvalidInputError, option="path"):
        read_catalog(5)


def test_a_folder_has_a_table_for_each_repository(tmp_path):
    for name in ("gfs-analysis.icechunk", "ocean", "deep/er"):
        write(tmp_path / name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("x")
    found = read_catalog(str(tmp_path), {"storage.follow_symlinks": "true"})
    assert [(one.name, one.path) for one in found] == [
        ("gfs_analysis", f"{tmp_path}/gfs-analysis.icechunk"),
        ("ocean", f"{tmp_path}/ocean"),
    ]
    assert found[0].options == {"storage.follow_symlinks": "true"}
    with raises(InvalidInputError, option="catalog", match="is a repository"):
        read_catalog(str(tmp_path / "ocean"))
    write(tmp_path / "Ocean.zarr")
    with raises(InvalidInputError, option="catalog", match="would have one name"):
        read_catalog(str(tmp_path))


def test_a_folder_in_memory():
    write("memory://lake/weather")
    assert [one.name for one in read_catalog("memory://lake")] == ["weather"]


def test_the_state_of_tables(tmp_path):
    repository = write(tmp_path / "weather", 3)
    first = repository.resolve(branch="main")
    repository.create_tag("v1", first)
    write(tmp_path / "weather", 5)
    tables = {
        "weather": {"path": "weather", "tags": True, "comment": "Hourly"},
        "some": {"path": "weather", "isel": "x=1:4"},
        "counted": {"path": "weather", "where": "v > 1"},
        "history": "weather#history",
        "pinned": {"path": "weather", "snapshot": str(first)},
        "none": "none",
        "tag": {"path": "weather", "tags": ["v9"]},
    }
    path = put(tmp_path, "c.json", json.dumps({"tables": tables}))
    found = {facts.name: facts for _, facts in checked_entries(read_catalog(path))}
    assert list(found) == [
        *("weather", "weather@v1", "some", "counted", "history", "pinned", "none", "tag", "tag@v9")
    ]
    rows = {name: facts.rows for name, facts in found.items()}
    assert rows == {
        "weather": 5,
        "weather@v1": 3,
        "some": 3,
        "counted": None,
        "history": None,
        "pinned": 3,
        "none": None,
        "tag": 5,
        "tag@v9": None,
    }
    assert found["weather@v1"].tag == "v1"
    assert found["weather@v1"].snapshot_id == found["pinned"].snapshot_id == str(first)
    assert (found["weather"].branch, found["pinned"].branch) == ("main", None)
    assert found["history"].path == f"{tmp_path}/weather#history"
    assert "no Icechunk repository" in found["none"].problem
    assert "no tag 'v9'" in found["tag@v9"].problem
    assert found["weather"].comment == "Hourly"
    flushed = repository.snapshot_info(first).flushed_at / 1e6
    assert found["pinned"].committed_at.timestamp() == flushed
    assert found["pinned"].age(found["weather"].committed_at).total_seconds() > 0
    assert found["none"].age(found["weather"].committed_at) is None


def test_state_without_a_parser_of_a_session(tmp_path):
    write(tmp_path / "r")
    [entry] = read_catalog({"tables": {"a": str(tmp_path / "r")}})
    assert facts_of(entry, parse_alone).rows == 3
