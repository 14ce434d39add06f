"""log, show, tree, diff, operations and config show a repository to users and to scripts.

Commands run in this process, on repositories in memory whose contents are known.
"""

import json
import re

import pytest
from helpers.grids.weather_repository import write_weather

from icechunk_format.command_line import app
from icechunk_format.command_line.views.documents import document_keys
from icechunk_format.options.metadata_tables import GROUPS, VARIABLES
from icechunk_format.repository import Repository

TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(just now\)")


def picture(outcome, weather):
    """Return the lines with names in place of what differs from run to run."""
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    text = TIME.sub("NOW", outcome.out)
    for name in ("first", "second", "audit"):
        text = text.replace(getattr(weather, name), name.upper())
    return text.splitlines()


def test_log_draws_branches_and_tags(command, weather):
    # The commits of both branches are instants apart, and the newest is drawn first.
    assert picture(command("log", weather.url), weather) == [
        "●    SECOND  main",
        "│    Change it",
        "│    NOW · 1 changed group, 1 chunk in 1 array",
        "│",
        "│ ●  AUDIT  audit",
        "│ │  Look at it",
        "│ │  NOW · 1 chunk in 1 array",
        "├─┘",
        "●    FIRST  tag v1",
        "│    Write it",
        "│",
        "│    with a second paragraph",
        "│    NOW · 2 new groups, 4 new arrays, 5 chunks in 3 arrays",
        "│    by: us",
        "│",
        "●    1CECHNKREP0F1RSTCMT0",
        "     Repository initialized",
        "     NOW · nothing changed",
        "     __icechunk: {is_root: true}",
    ]


def test_log_of_one_branch_stops_where_it_is_told(command, weather):
    lines = picture(command("log", weather.url, "-b", "audit", "-n", "1", "--no-changes"), weather)
    assert lines == ["●  AUDIT  audit", "│  Look at it", "│  NOW", LINES_LEFT]
    assert command("log", weather.url, "-n", "0").out == command("log", weather.url, "-n", "4").out


LINES_LEFT = "… older snapshots are not shown; -n 0 shows all"


def test_log_shows_snapshots_that_nothing_reaches_only_with_all(command, weather):
    weather.repository.reset_branch("audit", weather.first)
    assert weather.audit not in command("log", weather.url).out
    assert weather.audit in command("log", weather.url, "--all").out
    assert command("log", weather.url, "--all", "-b", "main").code == 2


def test_log_of_spec_version_1(command, weather_v1):
    lines = picture(command("log", weather_v1.url), weather_v1)
    assert [line for line in lines if "NOW" in line] == [
        "│    NOW · 1 changed group, 1 chunk in 1 array",
        "│ │  NOW · 1 chunk in 1 array",
        "│    NOW · 2 new groups, 4 new arrays, 5 chunks in 3 arrays",
        "     NOW · no transaction log",
    ]


def test_tree_lines_up_what_arrays_are(command, weather):
    assert command("tree", weather.url).lines == [
        "             type     shape          chunks  shards  codecs                 stored"
        "             size",
        "/",
        "├── height   float32  scalar                         bytes, zstd            0 of 1"
        "             0 B",
        "├── lat      float64  lat 4          4               bytes, zstd            1 of 1"
        "             9 B",
        "├── sea",
        "│   └── ice  float32  dim_0 8 × x 8  2 × 2   4 × 8   sharding(bytes, zstd)  2 of 2,"
        " 2 virtual  3.0 kB elsewhere",
        "└── t        float32  lat 4 × lon 6  2 × 3           bytes, zstd            3 of 4"
        "             305 B",
        "",
        "2 groups · 4 arrays · 6 of 8 chunks · 314 B + 3.0 kB elsewhere",
    ]


def test_tree_of_a_group_at_a_tag_with_attributes_and_without_sizes(command, weather):
    lines = command(
        "tree", weather.url, "--tag", "v1", "--group", "/sea", "--no-sizes", "--attributes"
    ).lines
    assert lines == [
        "         type     shape          chunks  shards  codecs",
        "/sea",
        "└── ice  float32  dim_0 8 × x 8  2 × 2   4 × 8   sharding(bytes, zstd)",
        "",
        "1 group · 1 array",
    ]
    whole = command("tree", weather.url, "--attributes").lines
    assert "│   title: Weather" in whole
    assert "│   │   new: 1" in whole
    assert "        valid_range: [180, 340]" in whole


def test_an_empty_repository_has_a_tree_and_a_log(command):
    Repository.create("memory://command-line-empty")
    assert command("tree", "memory://command-line-empty").lines == ["no groups and no arrays yet"]
    assert "Repository initialized" in command("log", "memory://command-line-empty").out


def test_show_says_what_a_snapshot_holds_and_changed(command, weather):
    lines = picture(command("show", weather.url), weather)
    assert [re.sub(r"\d+ B, 6", "SIZE, 6", line) for line in lines] == [
        "snapshot  SECOND  main",
        "parent    FIRST",
        "committed NOW",
        "nodes     2 groups, 4 arrays",
        "manifests 3 files, SIZE, 6 chunk references",
        "stored    6 chunks, 314 B; 2 of them virtual, 3.0 kB elsewhere",
        "",
        "    Change it",
        "",
        "changes",
        "    ~ /sea  metadata changed",
        "    ~ /t    1 chunk",
    ]


def test_show_takes_a_name_or_options_but_not_both(command, weather):
    by_name = command("show", weather.url, "v1").out
    assert by_name == command("show", weather.url, "--tag", "v1").out
    assert by_name == command("show", weather.url, weather.first).out
    assert "by: us" in by_name
    assert command("show", weather.url, "v1", "--tag", "v1").code == 2
    assert command("show", weather.url, "--as-of", "2001-01-01").code == 1


def test_diff_names_nodes(command, weather):
    assert picture(command("diff", weather.url, "v1"), weather) == [
        "v1 (FIRST) → main (SECOND)",
        "    ~ /sea  metadata changed",
        "    ~ /t    1 chunk",
        "2 nodes changed, 1 chunk written or deleted",
    ]
    whole = command("diff", weather.url, "1CECHNKREP0F1RSTCMT0", "v1").lines
    assert "    + /lat      new array, 1 chunk" in whole
    backwards = command("diff", weather.url, "main", "v1")
    assert backwards.code == 2
    assert "is not an ancestor" in backwards.err


def test_diff_shows_moves_and_removals(command, weather):
    session = weather.repository.writable_session()
    session.delete("/lat")
    session.commit("Remove")
    session = weather.repository.writable_session()
    session.move("/sea", "/ocean")
    session.commit("Move")
    lines = command("diff", weather.url, "v1").lines
    assert "    - /lat        array removed" in lines
    assert any("> /ocean" in line and "moved from /sea" in line for line in lines)


def test_operations_come_newest_first(command, weather):
    lines = [
        re.sub(r"^.* UTC +", "", line)
        for line in picture(command("operations", weather.url), weather)
    ]
    assert [re.sub(r"  +", "  ", line) for line in lines] == [
        "new commit  main SECOND",
        "new commit  audit AUDIT",
        "branch created  audit",
        "tag created  v1",
        "new commit  main FIRST",
        "repo initialized",
    ]
    assert command("operations", weather.url, "-n", "2").lines[-1].startswith("… older ones")


def test_spec_version_1_keeps_no_operations(command, weather_v1):
    outcome = command("operations", weather_v1.url)
    assert (outcome.code, outcome.out) == (0, "")
    assert "spec version 1" in outcome.err


def test_lists_of_branches_and_tags(command, weather):
    assert [line.split()[:2] for line in command("branch", "list", weather.url).lines] == [
        ["audit", weather.audit],
        ["main", weather.second],
    ]
    assert [line.split()[:2] for line in command("tag", "list", weather.url).lines] == [
        ["v1", weather.first]
    ]


def test_applications_of_a_branch(command, weather):
    assert command("applications", weather.url).out == ""
    assert "no commit on branch main" in command("applications", weather.url).err
    for app_id, version in (("nightly", 3), ("nightly", 1), ("hourly", 7), ("nightly", 4)):
        session = weather.repository.writable_session()
        session.set_attributes("/", {"version": version})
        session.commit("Work", metadata={"txnAppId": app_id, "txnVersion": version})
    nightly, hourly = picture(command("applications", weather.url), weather)
    tip = weather.repository.resolve(branch="main")
    assert re.sub(r"  +", "  ", nightly).startswith(f"nightly  1, 3 to 4  {tip}  20")
    assert hourly.split()[:2] == ["hourly", "7"]
    found = json.loads(command("applications", weather.url, "--app-id", "hourly", "--json").out)
    assert [one["versions"] for one in found["applications"]] == [[[7, 7]]]
    assert not found["has_expired_snapshots"]
    on_audit = command("applications", weather.url, "-b", "audit", "--app-id", "nightly")
    assert "version of the application nightly" in on_audit.err


# -- for scripts ----------------------------------------------------------------------------


def check_keys(keys, value, where):
    """Check that a document has the documented keys; lists may leave out none either."""
    assert isinstance(value, dict), where
    assert list(value) == list(keys), where
    for key, meaning in keys.items():
        if isinstance(meaning, str) or value[key] is None:
            continue
        items = value[key] if isinstance(value[key], list) else [value[key]]
        for item in items:
            check_keys(meaning[1], item, f"{where}.{key}")


@pytest.mark.parametrize(
    "words",
    [
        "log",
        "show",
        "diff",
        "operations",
        "applications",
        "branch list",
        "tag list",
        "config show",
        "verify",
    ],
)
def test_documents_have_the_documented_keys(command, weather, words):
    arguments = [weather.url, "v1"] if words == "diff" else [weather.url]
    outcome = command(*words.split(), *arguments, "--json")
    document = json.loads(outcome.out)
    check_keys(document_keys(words), document, words)
    assert document["repository"] == weather.url


def test_tree_for_scripts(command, weather):
    document = json.loads(command("tree", weather.url, "--json").out)
    assert list(document) == list(document_keys("tree"))
    known = document_keys("tree")["nodes"][1]
    for node in document["nodes"]:
        table = GROUPS if node["type"] == "group" else VARIABLES
        assert set(node) == {"type", *table.names}
        assert set(node) <= set(known)
    assert {"type", *GROUPS.names, *VARIABLES.names} == set(known)
    ice = next(node for node in document["nodes"] if node["path"] == "/sea/ice")
    assert ice["dims"] == ["dim_0", "x"]
    assert (ice["chunks"], ice["shards"]) == ([2, 2], [4, 8])
    assert ice["codecs"][0]["name"] == "sharding_indexed"
    assert (ice["stored_chunks"], ice["virtual_bytes"], ice["missing_chunks"]) == (2, 3000, 0)


def test_every_command_documents_its_json():
    assert all(len(document_keys(words)) > 1 for words in app.COMMANDS)


def test_config_show_and_set(command, weather):
    before = json.loads(command("config", "show", weather.url, "--json").out)
    assert before["stored"].get("compression") is None
    assert before["effective"]["compression"]["level"] == 3
    changed = command("config", "set", weather.url, "compression.level", "7")
    assert changed.lines == ["compression.level  7"]
    prefix = "s3://bucket.with.dots/"
    setting = f"virtual_chunk_containers.{prefix}"
    store = {"s3": {"region": "eu-central-1"}}
    value = json.dumps({"url_prefix": prefix, "store": store})
    assert command("config", "set", weather.url, setting, value).code == 0
    after = json.loads(command("config", "show", weather.url, "--json").out)
    assert after["stored"]["compression"]["level"] == 7
    assert prefix in after["stored"]["virtual_chunk_containers"]
    assert command("config", "set", weather.url, "compression.levl", "7").code == 2
    assert command("config", "set", weather.url, "compression.level", "null").code == 0
    lines = command("config", "show", weather.url).lines
    assert any(re.fullmatch(r"compression\.level +3 +default", line) for line in lines)


def test_verify_finds_missing_chunks_and_says_so_by_its_exit_code(command, weather):
    outcome = command("verify", weather.url)
    # The fixture refers to chunk objects that nobody wrote.
    assert outcome.code == 3
    assert outcome.lines[0].startswith("error   chunk-missing  /t · chunk (0, 0) · chunks/")
    assert outcome.lines[-1] == "2 errors, 1 warning"
    found = json.loads(command("verify", weather.url, "--json").out)
    assert (found["errors"], found["warnings"]) == (2, 1)
    assert found["findings"][0]["kind"] == "chunk-missing"
    Repository.create("memory://command-line-sound")
    assert command("verify", "memory://command-line-sound").code == 0


def test_versions_are_picked_alike_everywhere(command, weather):
    for words in ("show", "tree", "verify", "explain"):
        tagged = command(words, weather.url, "--tag", "v1", "--json").out
        assert tagged == command(words, weather.url, "--snapshot", weather.first, "--json").out
        newest = command(words, weather.url, "--json", "--as-of", "0s").out
        assert newest == command(words, weather.url, "--branch", "main", "--json").out


def test_local_paths_and_urls_are_shown_as_given(command, tmp_path):
    found = write_weather(str(tmp_path / "weather"))
    document = json.loads(command("branch", "list", tmp_path / "weather", "--json").out)
    assert document["repository"] == found.url


def test_explain_counts_what_a_read_fetches(command, weather):
    found = json.loads(command("explain", weather.url, "--json").out)
    assert set(found) == {"repository", *document_keys("explain")}
    assert found["is_exact"]
    assert found["rows"] == found["cells"] > 0
    rough = json.loads(command("explain", weather.url, "--no-exact", "--json").out)
    assert rough["stored_bytes"] is None
    chunks = json.loads(command("explain", weather.url, "-o", "layout=chunks", "--json").out)
    assert chunks["rows"] < found["rows"]
    assert command("explain", weather.url, "--option", "layot=chunks").code == 2


def test_explain_for_people(command, weather):
    lines = command("explain", weather.url).lines
    assert [line.split()[1] for line in lines] == ["rows", "chunks,", "requests"]
