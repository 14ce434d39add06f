"""The commands on catalogs, and their exit codes."""

import json

import pyarrow as pa
import pytest

from icechunk_format.command_line.exit_codes import ExitCode
from icechunk_format.options.write import WriteOptions
from icechunk_format.tables.writing.in_process import write_table


@pytest.fixture
def catalog(tmp_path):
    table = pa.table({"x": pa.array(range(3), pa.int32()), "v": [1.0] * 3})
    write_table(str(tmp_path / "weather"), table, WriteOptions(mode="append", dims=("x",)))

    def of(**tables):
        path = tmp_path / "catalog.json"
        path.write_text(json.dumps({"tables": tables}))
        return str(path)

    return of


def failed(outcome, code):
    assert outcome.code == code
    return outcome


def test_the_tables_of_a_catalog_are_listed(command, catalog, tmp_path):
    path = catalog(weather={"path": "weather", "comment": "Hourly"})
    listed = command("catalog", "list", path)
    assert "weather  3     main" in listed.out
    assert "Hourly" in listed.out
    document = json.loads(command("catalog", "list", path, "--json").out)
    assert document["catalog"] == path
    [table] = document["tables"]
    assert (table["name"], table["rows"], table["problem"]) == ("weather", 3, None)
    assert "weather" in command("catalog", "list", str(tmp_path)).out


def test_a_check_finds_tables_that_cannot_be_used(command, catalog):
    assert "1 table can be used, 0 cannot" in command("catalog", "check", catalog(a="weather")).out
    path = catalog(a="weather", b="none", c={"path": "weather", "variables": ["w"]})
    checked = failed(command("catalog", "check", path), ExitCode.FINDINGS)
    assert "b: there is no Icechunk repository" in checked.out
    assert "no array 'w'" in checked.out
    assert "1 table can be used, 2 cannot" in checked.out
    document = failed(command("catalog", "check", path, "--json"), ExitCode.FINDINGS).out
    assert json.loads(document)["problems"] == 2


def test_a_wrong_catalog_is_a_wrong_argument(command, catalog):
    path = catalog(a={"path": "weather", "variabels": "v"})
    assert "variabels" in failed(command("catalog", "check", path), ExitCode.USAGE).err
    failed(command("catalog", "check", f"{path}.yaml"), ExitCode.ERROR)


def test_credentials_are_taken_by_name_from_the_environment(command, catalog, monkeypatch):
    path = catalog(a="weather")
    found = failed(command("catalog", "list", path, "--credentials", "lake"), ExitCode.USAGE)
    assert "no credentials are named 'lake'" in found.err
    monkeypatch.setenv("ICECHUNK_CREDENTIALS__LAKE__FOLLOW_SYMLINKS", "true")
    assert "weather" not in command("catalog", "list", path, "--credentials", "lake").err
