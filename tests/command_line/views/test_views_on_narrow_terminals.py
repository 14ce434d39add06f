"""The command line shows short ids, arrays that grew and names of types on narrow terminals."""

import json
import os
import re
import subprocess
import sys

import pytest

from icechunk_format.command_line.views import tree as tree_view
from icechunk_format.repository import Repository


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        ("float32", "float32"),
        ('{"name":"fixed_length_utf32","configuration":{"length_bytes":16}}', "U4"),
        ('{"name":"null_terminated_bytes","configuration":{"length_bytes":5}}', "S5"),
        (
            '{"name":"numpy.datetime64","configuration":{"unit":"s","scale_factor":1}}',
            "datetime64[s]",
        ),
        (
            '{"name":"struct","configuration":{"fields":[["a","int8"],["b","int8"]]}}',
            "struct(a, b)",
        ),
        ('{"name":"of tomorrow"}', '{"name":"of tomorrow"}'),
        (None, "?"),
    ],
)
def test_types_with_parameters_are_named_as_people_write_them(dtype, text):
    assert tree_view.type_text(dtype) == text


def test_short_ids_are_taken_where_they_are_unambiguous(command, weather):
    tip = str(weather.repository.resolve())
    for words in (("show", weather.url, tip[:6]), ("tree", weather.url, "--snapshot", tip[:6])):
        assert json.loads(command(*words, "--json").out)["snapshot_id"] == tip
    shown = json.loads(command("show", weather.url, tip[:7].lower(), "--json").out)
    assert shown["snapshot_id"] == tip
    assert command("show", weather.url, tip[:3]).code != 0


def document(length):
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [length],
            "data_type": "int8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [24]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            "attributes": {"length": "long"} if length > 72 else {},
            "dimension_names": ["time"],
        }
    ).encode()


def test_a_diff_says_how_an_array_grew(command, tmp_path):
    repository = Repository.create(str(tmp_path))
    session = repository.writable_session()
    session.create_group("/", b'{"zarr_format":3,"node_type":"group","attributes":{}}')
    names = ("time",)
    session.create_array("/a", document(48), shape=(48,), num_chunks=(2,), dimension_names=names)
    tips = [str(session.commit("48").snapshot_id)]
    for length in (72, 96):
        session = repository.writable_session()
        session.update_metadata(
            "/a",
            document(length),
            shape=(length,),
            num_chunks=(length // 24,),
            dimension_names=names,
        )
        tips.append(str(session.commit(str(length)).snapshot_id))
    arrow = "→" if (sys.stdout.encoding or "").lower().startswith("utf") else "->"
    shown = command("diff", tmp_path, tips[0][:8], tips[1]).out
    assert f"time 48 {arrow} 72" in shown
    assert "metadata changed" not in shown
    assert (
        f"time 72 {arrow} 96, metadata changed" in command("diff", tmp_path, tips[1], tips[2]).out
    )
    (change,) = json.loads(command("diff", tmp_path, tips[0], tips[1], "--json").out)["changes"]
    assert change["resized"] == [{"dimension": "time", "from": 48, "to": 72}]


def in_terminal(*arguments, columns=80):
    """Return the lines of a command, as on a terminal of so many columns."""
    program = [sys.executable, "-m", "icechunk_format.command_line", *map(str, arguments)]
    env = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(columns), "PYTHONUTF8": "1"}
    env |= {"TERM": "dumb"}
    done = subprocess.run(program, env=env, capture_output=True, check=False, text=True)
    return done.stdout.splitlines()


def test_settings_and_findings_fit_a_terminal_of_80_columns(tmp_path):
    repository = Repository.create(str(tmp_path))
    url = "s3://a-bucket-with-a-long-name/and/a/folder/in/it/that/is/long/too/"
    store = {"store": {"s3": {"region": "eu-1"}}}
    repository.update_config({"virtual_chunk_containers": {url: store}})
    (tmp_path / "transactions" / str(repository.resolve())).write_bytes(b"damaged" * 30)
    for words in (("config", "show", tmp_path), ("verify", tmp_path)):
        lines = [re.sub("\x1b\\[[0-9;]*m", "", line) for line in in_terminal(*words)]
        assert len(lines) > 3
        # Only what has no place to break is longer.
        assert [line for line in lines if len(line) > 80 and " " in line.strip()] == []


def test_shells_can_complete_commands():
    program = [sys.executable, "-m", "icechunk_format.command_line"]
    env = {
        **os.environ,
        "_ICECHUNK_SPARK_COMPLETE": "complete_bash",
        "COMP_WORDS": "icechunk-spark rew",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(program, env=env, capture_output=True, check=False, text=True)
    assert done.stdout.split() == ["rewrite-manifests"]
