"""Every spelling of an option is understood, and nothing else is accepted."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import pytest
from helpers import manual
from helpers.raised import raises
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError
from icechunk_format.options import OPTIONS, values
from icechunk_format.options.declare import TABLE_NAMES
from icechunk_format.options.parse import collect_options, parse_read_options
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write_request import parse_write_options
from icechunk_format.tables.writing.columns.checks import ENCODING_KEYS

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def parse(**options: str) -> ReadRequest:
    return parse_read_options({"path": "/data/repo", **options})


def message_of(**options: str) -> str:
    with pytest.raises(InvalidInputError) as caught:
        parse(**options)
    return str(caught.value)


# --- declarations -----------------------------------------------------------------------------


def test_each_option_of_reading_is_one_attribute():
    declared = [
        option.attribute for option in OPTIONS if {"read", "readStream"} & set(option.calls)
    ]
    assert sorted(declared) == sorted(field.name for field in fields(ReadRequest))


def test_no_two_options_share_a_spelling():
    spellings = [name.lower() for option in OPTIONS for name in option.spellings]
    assert len(spellings) == len(set(spellings))


def test_defaults():
    options = parse()
    assert options.layout == "cells"
    assert options.decode_cf is True
    assert options.missing_chunks == "fill"
    assert options.timestamp_type == "ntz"
    assert options.storage_client == "auto"
    assert options.rows_per_partition is None
    assert options.read_ahead_bytes == 64 * 2**20
    assert (options.branch, options.tag, options.snapshot, options.as_of) == (None,) * 4
    assert options.virtual_authorize == ()
    assert options.storage_options == {}


# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["asOf", "as-of", "as_of", "ASOF", "timestampAsOf", "as-of-timestamp", "timestamp_as_of"],
)
def test_spellings_of_one_option(name):
    expected = datetime(2024, 7, 1, 12, tzinfo=UTC)
    assert parse(**{name: "2024-07-01T12:00:00Z"}).as_of == expected


@pytest.mark.parametrize("name", ["snapshot", "snapshot-id", "snapshotId", "versionAsOf"])
def test_spellings_of_snapshot(name):
    assert parse(**{name: "1CECHNKREP0F1RSTCMT0"}).snapshot == "1CECHNKREP0F1RSTCMT0"


def test_version_as_of_takes_a_tag_as_well():
    options = parse(versionAsOf="v1")
    assert (options.tag, options.snapshot) == ("v1", None)
    assert parse(snapshot="v1").snapshot == "v1"
    assert "exclude one another" in message_of(versionAsOf="v1", branch="main")
    assert "same option 'tag'" in message_of(versionAsOf="v1", tag="v1")


def test_dots_may_be_underscores():
    assert parse(sel="x=1", sel_method="nearest").sel_method == "nearest"
    assert parse(storage_client="fsspec", virtual_authorize="s3://b/").storage_client == "fsspec"
    options = parse(
        storage_endpoint_url="http://localhost",
        virtual_storage_region="eu",
        **{"storage.anon": "1"},
    )
    assert options.storage_options == {"endpoint_url": "http://localhost", "anon": "1"}
    assert options.virtual_storage_options == {"region": "eu"}
    text = message_of(**{"storage.secret": "hunter2", "storage_secret": "hunter3"})
    assert "'storage.secret' is given in two spellings" in text
    assert "hunter" not in text


#: A text that each parser takes; others take any.
TEXTS = {
    values.parse_boolean: "true",
    values.parse_positive_int: "5",
    values.parse_whole_number: "5",
    values.parse_byte_size: "1m",
    values.parse_timestamp: "2024-01-01",
    values.parse_url_prefixes: "s3://b/",
    values.parse_sizes: "a=5",
    values.parse_orders: "a=descending",
    values.parse_json_object: "{}",
    values.parse_json_of_objects: "{}",
    values.parse_fraction: "0.5",
    values.parse_spec_version: "1",
}


@given(st.sampled_from([option for option in OPTIONS if not option.is_prefix]), st.randoms())
def test_names_ignore_case_dashes_and_underscores(option, random):
    spelled = "".join(
        random.choice((letter.lower(), letter.upper())) + random.choice(("", "-", "_"))
        for letter in option.name
    )
    parse = option.parse
    text = parse.allowed[0] if isinstance(parse, values.Choice) else TEXTS.get(parse, "x")
    assert list(collect_options({spelled: text}, option.calls[0])) == [option.name]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("varaibles", "variables"),
        ("var", None),
        ("tags", "tag"),
        ("version", None),
        ("timestamp", "timestampType"),
        ("missing", None),
        ("time-travel", None),
        ("decodecfs", "decodeCf"),
        ("column", "coords"),
        ("partitionRows", None),
    ],
)
def test_unknown_option_names_the_nearest(typed, meant):
    with pytest.raises(InvalidInputError) as caught:
        parse(**{typed: "x"})
    text = str(caught.value)
    assert f"unknown option '{typed}'" in text
    assert "variables" in text
    assert len(text.splitlines()) == 1
    if meant is not None and caught.value.facts["nearest"] is not None:
        assert f"did you mean '{caught.value.facts['nearest']}'?" in text


@pytest.mark.parametrize(
    "typed", ["region", "anon", "endpoint_url", "aws_access_key_id", "fs.s3a.access.key"]
)
def test_storage_settings_without_the_prefix(typed):
    assert "start with 'storage.'" in message_of(**{typed: "secret-value"})
    assert "secret-value" not in message_of(**{typed: "secret-value"})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("1719835200", "seconds since 1970 it is 2024-07-01T12:00:00Z"),
        ("1719835200250", "milliseconds since 1970 it is 2024-07-01T12:00:00.250Z"),
        ("1719835200000", "milliseconds since 1970 it is 2024-07-01T12:00:00Z"),
        ("1719835200000001", "microseconds since 1970 it is 2024-07-01T12:00:00.000001Z"),
    ],
)
def test_times_since_1970_are_shown_as_timestamps(given, meant):
    text = message_of(**{"as-of-timestamp": given})
    assert meant in text
    shown = re.search(r"1970 it is (\S+)", text)[1]
    assert parse(asOf=shown).as_of.timestamp() == pytest.approx(
        int(given) / 10 ** (len(given) - 10), abs=1e-6
    )


def test_other_digits_are_no_times_since_1970():
    assert "1970" not in message_of(asOf="17198352001")
    assert parse(asOf="20240701").as_of == parse(asOf="2024-07-01").as_of


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("pushDown", "where"),
        ("readChangeFeed", "changesSince"),
        ("StartingVersion", "changesSince"),
        ("endingTimestamp", "snapshot"),
        ("overwriteSchema", None),
        ("partition_overwrite_mode", "replaceWhere"),
    ],
)
def test_options_of_other_formats_point_to_ours(typed, nearest):
    with pytest.raises(InvalidInputError) as no:
        parse(**{typed: "true"})
    assert no.value.facts == {"option": typed, "nearest": nearest}


@pytest.mark.parametrize(
    ("lowered", "typed"),
    [
        ("startingversion", "startingVersion"),
        ("partitionoverwritemode", "partitionOverwriteMode"),
        ("versionasof", "versionAsOf"),
        ("ignoredeletes", "ignoreDeletes"),
    ],
)
def test_names_in_the_lower_case_of_spark_are_shown_as_users_type_them(lowered, typed):
    with pytest.raises(InvalidInputError) as no:
        parse(**{lowered: "1"})
    assert no.value.facts["option"] == typed
    assert f"'{typed}'" in no.value.message


def test_snapshots_have_no_numbers():
    with pytest.raises(InvalidInputError) as no:
        parse(versionAsOf="1")
    assert no.value.facts == {"option": "versionAsOf", "found": "1"}
    assert parse(versionAsOf="v1").tag == "v1"
    assert parse(tag="1").tag == "1"


def test_what_spark_adds_is_let_through():
    options = {"owner": "x", "location": "y", "__internal": "1", "option.path": "z"}
    assert parse(**options).path == "/data/repo"


def test_one_option_twice_under_two_names():
    text = message_of(asOf="2024-01-01", timestampAsOf="2024-01-01")
    assert "'asOf'" in text
    assert "'timestampAsOf'" in text


# --- paths ------------------------------------------------------------------------------------


CATALOG_TABLE = {"path": "file:/a", "provider": "icechunk", "owner": "me", "location": "file:/a"}


@pytest.mark.parametrize(
    ("options", "says", "fact"),
    [
        ({"tag": "v1"}, "'path' is missing.*TEMPORARY VIEW", {"option": "path"}),
        (CATALOG_TABLE, "CREATE TEMPORARY VIEW v USING icechunk", {"option": "path"}),
        ({"paths": '["/a", "/b"]'}, "2 paths.*union", {"paths": 2}),
        ({"path": "/a", "paths": '["/b"]'}, None, {"paths": 2}),
        ({"path": "/data/repo#snapshot"}, "did you mean '#snapshots'", {"option": "path"}),
    ],
)
def test_paths_that_name_no_repository_or_several(options, says, fact):
    with raises(InvalidInputError, match=says, **fact):
        parse_read_options(options)


def test_one_path_in_a_list_and_a_number_sign_in_a_folder():
    assert parse_read_options({"paths": '["/a"]'}).path == "/a"
    assert parse_read_options({"path": "/data/run#12"}).path == "/data/run#12"


@pytest.mark.parametrize("name", TABLE_NAMES)
def test_a_metadata_table_is_named_in_the_path_or_by_option(name):
    for options in ({"path": f"/data/repo#{name}"}, {"path": "/data/repo", "table": name.upper()}):
        parsed = parse_read_options(options)
        assert (parsed.path, parsed.table) == ("/data/repo", name)
    other = "refs" if name != "refs" else "groups"
    with raises(InvalidInputError, match="give one of the two", option="table"):
        parse_read_options({"path": f"/data/repo#{name}", "table": other})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"table": "chunk"}, "did you mean 'chunks'"),
        ({"table": "snapshots", "where": "x > 1"}, "filter and select columns of the DataFrame"),
        ({"table": "chunks", "variables": "a"}, "filter and select columns of the DataFrame"),
        ({"table": "chunks", "decodeCf": "false"}, "about the values of arrays"),
        ({"table": "chunks", "virtual.authorize": "s3://b/"}, "does not apply to the metadata"),
        ({"table": "chunks", "layout": "refs"}, "does not apply to the metadata table 'chunks'"),
        ({"table": "refs", "tag": "v1"}, "this table takes path, storage.client"),
        ({"table": "operations", "group": "/a"}, "it is for 'groups', 'variables', 'manifests'"),
        ({"table": "changes", "branch": "dev"}, "this table takes path, .*, from, to"),
        ({"table": "history", "from": "v1"}, "it is for 'changes'"),
        ({"from": "v1"}, "it is for the metadata table 'changes'"),
    ],
)
def test_options_that_make_no_sense_with_a_table(options, says):
    with pytest.raises(InvalidInputError, match=says):
        parse_read_options({"path": "/data/repo", **options})


def test_options_of_the_tables():
    parsed = parse(table="changes", **{"from": "v1", "TO": "dev"})
    assert (parsed.from_version, parsed.to_version) == ("v1", "dev")
    parsed = parse(table="chunks", tag="v1", group="/a", rowsPerPartition="5")
    assert (parsed.tag, parsed.group, parsed.rows_per_partition) == ("v1", "/a", 5)


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"decodeCf": "yes"}, "'decodeCf' must be true or false, but is 'yes'"),
        ({"rowsPerPartition": "0"}, "whole number above 0"),
        ({"rowsPerPartition": "-5"}, "whole number above 0"),
        ({"rowsPerPartition": "4e6"}, "whole number above 0"),
        ({"readAheadBytes": "64x"}, "size in bytes"),
        ({"readAheadBytes": "0"}, "size in bytes"),
        ({"layout": "cell"}, "did you mean 'cells'"),
        ({"layout": "parquet"}, "'cells', 'chunks', 'refs' or 'summary'"),
        ({"missingChunks": "ignore"}, "'fill' or 'skip'"),
        ({"timestampType": "local"}, "'ntz' or 'utc'"),
        ({"asOf": "yesterday"}, "ISO 8601"),
        ({"variables": "a,,b"}, "names separated by commas"),
        ({"variables": "a,a"}, "'a' more than once"),
        ({"variables": "[1]"}, "JSON list of strings"),
        ({"branch": " "}, "'branch' is empty"),
        ({"virtual.authorize": "bucket/folder"}, "no '://'"),
        ({"sel.method": "linear"}, "'exact' or 'nearest'"),
        ({"branch": "a", "tag": "b"}, "'branch' and 'tag' exclude one another"),
        ({"tag": "a", "snapshot": "b"}, "'tag' and 'snapshot' exclude"),
        ({"asOf": "2024-01-01", "tag": "v1"}, "'asOf' and 'tag' exclude"),
        ({"asOf": "2024-01-01", "snapshot": "X"}, "'asOf' and 'snapshot' exclude"),
        ({"block": "time=1"}, "'block' does not apply to layout=cells: it is for layout 'summary'"),
        *(
            ({"layout": "summary", "block": bad}, "'block' must be sizes above 0 by dimension")
            for bad in ("time=0", "time=x", "time", "time=1,time=2", "=1", ",")
        ),
        ({"layout": "refs", "coords": "a"}, "'coords' does not apply to layout=refs"),
        ({"decoded": "false"}, "it is for layout 'chunks'"),
    ],
)
def test_bad_values_say_what_is_allowed(options, says):
    text = message_of(**options)
    assert says in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("64m", 64 * 2**20), ("64MB", 64 * 2**20), ("1 GiB", 2**30), ("512k", 2**19)],
)
def test_sizes(text, size):
    assert parse(readAheadBytes=text).read_ahead_bytes == size


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2024-07-01", datetime(2024, 7, 1, tzinfo=UTC)),
        ("2024-07-01 12:30", datetime(2024, 7, 1, 12, 30, tzinfo=UTC)),
        ("2024-07-01T12:30:00+05:30", datetime(2024, 7, 1, 7, tzinfo=UTC)),
        ("2024-07-01 12:30:00 UTC", datetime(2024, 7, 1, 12, 30, tzinfo=UTC)),
    ],
)
def test_instants_without_a_zone_are_utc(text, instant):
    assert parse(asOf=text).as_of == instant


def test_names_with_commas_come_as_json():
    assert parse(variables="t2m, wind").variables == ("t2m", "wind")
    assert parse(variables=json.dumps(["a,b", "c"])).variables == ("a,b", "c")


# --- families and secrets ---------------------------------------------------------------------


def test_storage_families_keep_apart():
    options = parse(
        **{
            "storage.key": "AAA",
            "Storage.Endpoint_URL": "http://x",
            "storage.client": "fsspec",
            "virtual.storage.anon": "true",
            "virtual.authorize": "s3://a/, s3://b/c",
        }
    )
    assert options.storage_options == {"key": "AAA", "endpoint_url": "http://x"}
    assert options.storage_client == "fsspec"
    assert options.virtual_storage_options == {"anon": "true"}
    assert options.virtual_authorize == ("s3://a/", "s3://b/c")


def test_no_credential_in_a_repr_or_an_error():
    secrets = {"storage.secret": "hunter2", "virtual.storage.token": "hunter2"}
    assert "hunter2" not in repr(parse(**secrets))
    assert "hunter2" not in message_of(**secrets, varaibles="x")


# --- the manual -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mark", "made"), manual.TABLES)
def test_the_manual_holds_what_is_declared(name, mark, made):
    page = (manual.REFERENCE / name).read_text(encoding="utf-8")
    assert page == manual.with_table(page, mark, made()), (
        f"the table in {name} differs from what is declared; run make format"
    )
    assert made().count("`") > 10


@pytest.mark.parametrize(("name", "mark"), manual.README)
def test_the_readme_repeats_the_manual(name, mark):
    readme = (manual.ROOT / "README.md").read_text(encoding="utf-8")
    part = manual.for_the_readme(name, mark)
    assert readme == manual.with_table(readme, mark, part), "run make format"
    assert "](docs/" in part or "](" not in part


def test_a_write_of_references_may_name_the_places_of_its_containers():
    given = {"path": "/tmp/a", "virtual.authorize": "s3://a/", "virtual.storage.region": "eu"}
    request = parse_write_options({**given, "layout": "refs"})
    assert request.virtual_authorize == ("s3://a/",)
    assert dict(request.virtual_storage_options) == {"region": "eu"}


@pytest.mark.parametrize(
    "text", ["x=descending, t=ascending", '{"x": "descending", "t": "ascending"}']
)
def test_orders_are_parsed(text):
    request = parse_write_options({"path": "/tmp/a", "order": text})
    assert request.order == {"x": "descending", "t": "ascending"}


@pytest.mark.parametrize("text", ["x", "x=down", "x=ascending,x=descending", "{}", ""])
def test_orders_that_are_none_are_refused(text):
    with raises(InvalidInputError, match="latitude=descending", option="order"):
        parse_write_options({"path": "/tmp/a", "order": text})


def test_options_of_changes_need_the_snapshot_since_which_rows_changed():
    with pytest.raises(InvalidInputError) as caught:
        parse(changeColumns="true")
    assert caught.value.facts == {"option": "changeColumns"}
    assert parse(changeColumns="true", changesSince="v1").change_columns
    with raises(
        InvalidInputError,
        match="does not apply to layout=summary",
        option="changesSince",
        layout="summary",
    ):
        parse(changesSince="v1", layout="summary")


@pytest.mark.parametrize(
    ("call", "name", "value"),
    [
        ("read", "startingFrom", "latest"),
        ("read", "dims", "x"),
        ("readStream", "tag", "v1"),
        ("readStream", "versionAsOf", "v1"),
        ("readStream", "changesSince", "v1"),
        ("sample", "where", "x > 1"),
        ("sample", "layout", "chunks"),
        ("zonal", "missingChunks", "skip"),
        ("mirror", "branch", "dev"),
        ("mirror", "table", "refs"),
        ("mirrored", "group", "/a"),
        ("verify", "readAheadBytes", "1m"),
        ("maintenance", "virtual.authorize", "s3://b/"),
        ("write", "rewriteManifestsEvery", "10"),
        ("write", "tag", "v1"),
        ("writeStream", "txnVersion", "1"),
        ("virtualize", "chunks", "time=1"),
        ("virtualize", "layout", "cells"),
        ("delete", "tag", "v1"),
        ("delete", "specVersion", "1"),
        ("rechunk", "where", "x > 1"),
        ("map_blocks", "layout", "chunks"),
        ("read_blocks", "message", "m"),
    ],
)
def test_a_call_takes_the_options_that_are_declared_for_it(call, name, value):
    given = {name: value}
    with pytest.raises(InvalidInputError) as caught:
        collect_options(given, call)
    meant = "tag" if name == "versionAsOf" else name
    assert caught.value.facts == {"option": meant, "call": call}
    [option] = [option for option in OPTIONS if option.name == meant]
    for other in option.calls:
        assert collect_options(given, other) == collect_options(given, *option.calls)


def test_the_error_of_an_option_for_another_call_names_the_calls_and_advises():
    with pytest.raises(InvalidInputError) as caught:
        collect_options({"startingFrom": "latest"}, "read")
    assert str(caught.value) == (
        "option 'startingFrom' does not apply to read: it is for 'readStream'; leave it out, or"
        " read changes up to a snapshot with option 'changesSince'"
    )
    with raises(
        InvalidInputError,
        match=r"maintenance takes 'storage\.client', 'storage\.\*' and 'credentials'",
        option="tag",
        call="maintenance",
    ):
        collect_options({"tag": "v1"}, "maintenance")


def test_only_calls_that_read_metadata_tables_take_them_in_the_path():
    with pytest.raises(InvalidInputError) as caught:
        parse_read_options({"path": "/data/repo#refs"}, "maintenance")
    assert caught.value.facts == {"option": "path"}


def test_the_help_of_encoding_has_every_word():
    [encoding] = [option for option in OPTIONS if option.name == "encoding"]
    assert [key for key in ENCODING_KEYS if f"`{key}`" not in encoding.help] == []
