"""Commands that change a repository ask first, change only what they say, and set exit codes.

Nothing here has a terminal, unless a test pretends to be one.
"""

import contextlib
import json
import sys
from datetime import UTC

import pytest
from helpers.grids.weather_repository import write_weather
from helpers.raised import raises
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.command_line import arguments
from icechunk_format.command_line.arguments import given_strings, parse_past
from icechunk_format.command_line.views.documents import document_keys
from icechunk_format.errors import (
    CommitOutcomeUnknownError,
    InvalidInputError,
    StorageError,
)
from icechunk_format.options.keywords import parse_arguments
from icechunk_format.repository import Repository
from icechunk_format.storage.location import open_storage


@pytest.fixture
def at_a_terminal(monkeypatch):
    """Pretend that somebody is there; returns the list of questions, and takes the answer."""
    questions = []

    def answering(answer):
        def confirm(text, **_):
            questions.append(text)
            return answer

        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr("typer.confirm", confirm)
        monkeypatch.setattr(
            "icechunk_format.command_line.views.screen.Screen.require_confirmation", lambda *_: None
        )
        return questions

    return answering


def test_branches_come_and_go(command, weather):
    created = command("branch", "create", weather.url, "new", "--at", "v1")
    assert created.lines == [f"created branch new at {weather.first}"]
    moved = command("branch", "fast-forward", weather.url, "new", "main")
    assert moved.lines == [f"branch new is now at {weather.second} (was {weather.first})"]
    deleted = command("branch", "delete", weather.url, "new", "--yes")
    assert deleted.lines == [f"deleted branch new, which was at {weather.second}"]
    assert "new" not in weather.repository.branches()


def test_tags_come_and_go_for_ever(command, weather):
    assert command("tag", "create", weather.url, "v2", "--at", "audit").code == 0
    assert str(weather.repository.tags()["v2"]) == weather.audit
    assert command("tag", "create", weather.url, "v2").code == 1
    assert command("tag", "delete", weather.url, "v2", "--yes").code == 0
    listed = command("tag", "list", weather.url).lines
    assert listed[-1] == "deleted, not reusable: v2"
    assert "was" in command("tag", "create", weather.url, "v2").err


@pytest.mark.parametrize(
    "words",
    [
        ("branch", "delete", "URL", "audit"),
        ("tag", "delete", "URL", "v1"),
        ("reset", "URL", "main", "v1"),
        ("expire", "URL", "--older-than", "0s"),
        ("gc", "URL", "--older-than", "0s"),
        ("rewrite-manifests", "URL", "--amend"),
    ],
    ids=lambda words: words[0] + " " + words[1],
)
def test_without_a_terminal_nothing_is_deleted_unless_yes(command, weather, words):
    before = state(weather)
    outcome = command(*(weather.url if word == "URL" else word for word in words))
    assert outcome.code == 4
    assert outcome.out == ""
    assert "--yes" in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert state(weather) == before


def test_upgrade_asks_only_where_there_is_something_to_upgrade(command, weather, tmp_path):
    outcome = command("upgrade", weather.url)
    assert (outcome.code, outcome.out) == (0, "the repository already has spec version 2\n")
    old = tmp_path / "old"
    Repository.create(str(old), spec_version=1)
    outcome = command("upgrade", old)
    assert (outcome.code, outcome.out) == (4, "")
    assert "--yes" in outcome.err
    assert Repository.open(str(old)).spec_version == 1


def state(weather):
    repository = Repository.open(weather.url)
    return (
        repository.branches(),
        repository.tags(),
        {found.key for found in open_storage(repository.location).list("")},
    )


def test_reset_shows_what_leaves_history_and_asks(command, weather, at_a_terminal):
    questions = at_a_terminal(False)
    refused = command("reset", weather.url, "main", "v1")
    assert refused.code == 4
    assert refused.out == ""
    assert refused.err.startswith("1 snapshot would leave the history of main:")
    assert weather.second in refused.err
    assert questions == [f"Move branch main from {weather.second} to {weather.first}?"]
    at_a_terminal(True)
    accepted = command("reset", weather.url, "main", "v1")
    assert accepted.lines == [f"branch main is now at {weather.first} (was {weather.second})"]


def test_reset_expects_what_it_is_told(command, weather):
    lost = command("reset", weather.url, "main", "v1", "--expect", weather.first, "--yes")
    assert lost.code == 5
    assert weather.second in lost.err
    won = command("reset", weather.url, "main", "v1", "--expect", weather.second, "--yes", "--json")
    assert json.loads(won.out) == {
        "repository": weather.url,
        "branch": "main",
        "previous_snapshot_id": weather.second,
        "snapshot_id": weather.first,
    }


def test_a_branch_that_moves_while_the_question_stands_is_a_conflict(
    command, weather, monkeypatch, at_a_terminal
):
    at_a_terminal(True)

    def slow_answer(*_, **__):
        weather.repository.reset_branch("main", weather.audit)
        return True

    monkeypatch.setattr("typer.confirm", slow_answer)
    assert command("reset", weather.url, "main", "v1").code == 5
    assert str(weather.repository.branches()["main"]) == weather.audit


def test_deleting_a_branch_shows_what_only_it_reaches(command, weather, at_a_terminal):
    at_a_terminal(False)
    refused = command("branch", "delete", weather.url, "audit")
    assert refused.code == 4
    assert refused.err.startswith("1 snapshot would be in no branch or tag:")
    assert weather.audit in refused.err
    assert weather.first not in refused.err
    assert "audit" in weather.repository.branches()


def test_restore_keeps_history(command, weather):
    found = json.loads(command("restore", weather.url, "main", "v1", "-m", "Back", "--json").out)
    assert found["previous_snapshot_id"] == weather.second
    assert found["restored_snapshot_id"] == weather.first
    newest = next(iter(weather.repository.ancestry()))
    assert (str(newest.id), newest.message) == (found["snapshot_id"], "Back")


def test_expire_and_gc_say_first_what_will_go(command, weather, at_a_terminal):
    assert command("reset", weather.url, "audit", "main", "--yes").code == 0
    dry = json.loads(
        command("expire", weather.url, "--older-than", "0s", "--dry-run", "--json").out
    )
    assert dry["dry_run"] is True
    questions = at_a_terminal(True)
    expired = command("expire", weather.url, "--older-than", "0s", "--delete-expired-tags")
    assert questions == ["Remove them from history?"]
    assert "would leave history:" in expired.err
    assert weather.first in expired.err
    assert expired.lines[0].endswith("left history")
    assert "1 tag deleted: v1" in expired.lines
    kept = command("gc", weather.url, "--older-than", "1h", "--yes")
    assert kept.lines == ["no garbage of that age"]
    collected = command("gc", weather.url, "--older-than", "0s")
    assert questions[-1] == "Delete them permanently?"
    assert "snapshots" in collected.out
    numbers = json.loads(
        command("gc", weather.url, "--older-than", "0s", "--dry-run", "--json").out
    )
    assert numbers["snapshots_deleted"] == 0
    assert command("log", weather.url, "--all").code == 0


def test_expire_names_no_snapshot_that_a_branch_keeps(command, weather_v1):
    planned = command("expire", weather_v1.url, "--older-than", "0s", "--dry-run", "--json")
    assert json.loads(planned.out)["released_snapshots"] == []
    assert command("tag", "delete", weather_v1.url, "v1", "--yes").code == 0
    done = command("expire", weather_v1.url, "--older-than", "0s", "--yes", "--json")
    assert json.loads(done.out)["released_snapshots"] == [weather_v1.first]
    left = json.loads(command("log", weather_v1.url, "--json").out)["snapshots"]
    assert weather_v1.first not in {entry["snapshot_id"] for entry in left}
    assert {weather_v1.second, weather_v1.audit} < {entry["snapshot_id"] for entry in left}


def test_garbage_that_cannot_be_deleted_is_an_error(command, weather, monkeypatch):
    from icechunk_format import maintenance

    failed = maintenance.CollectResult(objects_failed_to_delete=3, delete_errors=("no\x1b[31m",))
    monkeypatch.setattr(maintenance, "collect_garbage", lambda *_, **__: failed)
    outcome = command("gc", weather.url, "--older-than", "7d", "--yes")
    assert outcome.code == 1
    assert "3 files could not be deleted; run gc again later" in outcome.lines
    assert "\x1b" not in outcome.out


def test_upgrade_is_shown_and_done(command, weather_v1, weather):
    planned = command("upgrade", weather_v1.url, "--dry-run")
    assert planned.lines[0] == (
        "4 snapshots, 2 branches, 1 tag would be in one file of spec version 2"
    )
    assert command("upgrade", weather_v1.url, "--yes").lines[0].startswith("4 snapshots")
    assert Repository.open(weather_v1.url).spec_version == 2
    assert "main" in command("log", weather_v1.url).out
    again = command("upgrade", weather.url, "--yes")
    assert again.lines == ["the repository already has spec version 2"]


def test_rewrite_manifests_merges_what_appends_left(command, weather):
    session = weather.repository.writable_session()
    session.set_chunk("/t", (1, 0), b"x" * 10)
    session.commit("More")
    rules = json.dumps([["any_array", [{"condition": "Any", "num_chunks": 1}]]])
    split = json.loads(
        command("rewrite-manifests", weather.url, "--splitting", rules, "--json").out
    )
    assert split["manifests_after"] > split["manifests_before"]
    merged = command("rewrite-manifests", weather.url)
    assert merged.code == 0
    assert merged.lines[-1].startswith("committed ")
    again = command("rewrite-manifests", weather.url)
    assert again.lines == ["every manifest already follows the rules; nothing was changed"]
    assert command("rewrite-manifests", weather.url, "--splitting", "{").code == 2


# -- errors and exit codes ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommitOutcomeUnknownError("who knows"), 6),
        (StorageError("lost the answer", outcome_unknown=True), 6),
        (StorageError("no route"), 1),
        (RuntimeError("a fault of ours\nwith details"), 1),
    ],
)
def test_errors_are_one_line_and_a_code(command, weather, monkeypatch, error, code):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(Repository, "create_branch", fail)
    outcome = command("branch", "create", weather.url, "new")
    assert outcome.code == code
    assert outcome.out == ""
    assert len(outcome.err.splitlines()) == 1
    assert outcome.err.startswith("error: ")
    shown = command("--traceback", "branch", "create", weather.url, "new")
    assert "Traceback" in shown.err
    assert shown.code == code


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("log", "memory://command-line-nowhere"), 1, "no Icechunk repository"),
        (("tree", "URL", "--branch", "mian"), 1, "no branch 'mian'"),
        (("tree", "URL", "--branch", "main", "--tag", "v1"), 2, "branch"),
        (("tree", "URL", "--group", "/nope"), 1, "/nope"),
        (("show", "URL", "nope"), 1, "nope"),
        (("show", "URL", "--as-of", "yesterday"), 2, "--as-of"),
        (("expire", "URL", "--older-than", "2999-01-01", "--yes"), 2, "future"),
        (("gc", "URL", "--older-than", "99999999d", "--yes"), 2, "--older-than"),
        (("gc", "URL"), 2, "--older-than"),
        (("branch", "delete", "URL", "main", "--yes"), 2, "main"),
        (("log", "URL", "--option", "storage.kee=x"), 2, "storage.kee"),
        (("log", "URL", "--option", "region=x"), 2, "region"),
        (("nope",), 2, "nope"),
        (("log",), 2, "REPOSITORY"),
        (("branch", "fast-forward", "URL", "main", "audit"), 5, "main"),
    ],
    ids=str,
)
def test_mistakes(command, weather, words, code, part):
    outcome = command(*(weather.url if word == "URL" else word for word in words))
    assert outcome.code == code
    assert outcome.out == ""
    assert part in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_credentials_are_in_no_message(command):
    secret = "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY"
    for wrong in (
        f"storage.secret={secret}",
        f"storage.secretx={secret}",
        f"secret={secret}",
        f"storage.secret {secret}",
    ):
        for more in (
            ["--option", wrong],
            [f"--option={wrong}"],
            [f"-o{wrong}", "--option", "storage.anon=maybe"],
            ["-o", wrong, "--nope"],
        ):
            outcome = command("log", "s3://bucket/path", *more, "--traceback")
            assert outcome.code == 2
            assert secret not in outcome.err + outcome.out


def test_an_error_that_repeats_a_credential_is_masked(command, monkeypatch):
    secret = "abcd/efgh=="

    def fail(*_, **__):
        raise RuntimeError(f"signed with {secret}\x1b[31m")

    monkeypatch.setattr(Repository, "open", fail)
    for flag in (
        ["-o", f"storage.secret={secret}"],
        [f"-ostorage.secret={secret}"],
        [f"--option=storage.session_token={secret}"],
        ["-o", "storage.region=x", f"--option=storage.key={secret}"],
    ):
        outcome = command("log", "s3://bucket/path", *flag, "--traceback")
        assert outcome.code == 1
        assert "signed with ***" in outcome.err
        assert secret not in outcome.err
        assert "\x1b" not in outcome.err


def test_options_have_their_names_in_spark():
    texts = given_strings(
        [
            "storage.region=us-west-2",
            "storage.endpoint_url=http://127.0.0.1:9000/?a=b",
            "Storage.Client=fsspec",
            "virtual.authorize=s3://a/, s3://b/",
            "virtual.storage.anon=true",
        ],
        "verify",
    )
    found = parse_arguments("/data/repo", texts, "verify")
    assert found.storage_options == {
        "region": "us-west-2",
        "endpoint_url": "http://127.0.0.1:9000/?a=b",
    }
    assert (found.storage_client, found.virtual_storage_options) == ("fsspec", {"anon": "true"})
    assert found.virtual_authorize == ("s3://a/", "s3://b/")
    assert "us-west-2" not in repr(found)
    with pytest.raises(InvalidInputError, match="twice"):
        given_strings(["storage.region=a", "storage.region=b"], "verify")
    with raises(InvalidInputError, match="does not apply to log: it is for", call="log"):
        given_strings(["virtual.authorize=s3://a/"], "maintenance", "log")


@given(st.text(max_size=20))
def test_no_text_is_an_instant_without_a_zone(text):
    with contextlib.suppress(InvalidInputError):
        assert parse_past(text, argument="--older-than").tzinfo is UTC


def test_writing_goes_to_disk(command, tmp_path):
    write_weather(str(tmp_path / "weather"))
    assert command("tag", "create", tmp_path / "weather", "v9").code == 0
    assert "v9" in Repository.open(str(tmp_path / "weather")).tags()
    assert arguments.location_at(str(tmp_path / "weather"), None).address.kind == "local"


def test_branches_are_merged(command, weather):
    previewed = command("merge", weather.url, "audit", "--dry-run", "--json")
    assert previewed.code == 0, previewed.err
    document = json.loads(previewed.out)
    assert list(document) == list(document_keys("merge"))
    assert document["snapshot_id"] is None
    assert str(weather.repository.resolve()) == weather.second
    outcome = command("merge", weather.url, "audit", "--resolve", "ours", "--json")
    if document["conflicts"] and outcome.code != 0:
        assert str(weather.repository.resolve()) == weather.second
    else:
        assert json.loads(outcome.out)["snapshot_id"] == str(weather.repository.resolve())
    picked = command("cherry-pick", weather.url, "audit", "--dry-run", "--json")
    assert list(json.loads(picked.out)) == list(document_keys("cherry-pick"))
    assert command("merge", weather.url, "audit", "--resolve", "mine").code != 0


def test_attributes_and_names_are_edited(command, weather):
    done = command("attrs", "set", weather.url, "/t", "units=degC", "range=[1, 2]", "--json")
    assert done.code == 0, done.err
    assert list(json.loads(done.out)) == list(document_keys("attrs set"))
    node = weather.repository.snapshot(weather.repository.resolve()).node("/t")
    assert json.loads(node.user_data)["attributes"]["range"] == [1, 2]
    assert command("attrs", "unset", weather.url, "/t", "range").code == 0
    assert command("attrs", "unset", weather.url, "/t", "range").code != 0
    for wrong in ("units", "=K", "range=[1, 2", 'range={"a": }', 'units="K'):
        failed = command("attrs", "set", weather.url, "/t", wrong)
        assert (failed.code, "NAME=VALUE" in failed.err) == (2, True), wrong
    assert command("attrs", "set", weather.url, "/t", "units=degC").lines == ["nothing to change"]
    assert command("rename", weather.url, "/t", "/t2m").code == 0
    assert command("drop", weather.url, "/t2m", "-m", "Not needed").code == 0
    assert weather.repository.snapshot(weather.repository.resolve()).node("/t2m") is None


def test_a_path_without_a_slash_is_below_the_root(command, weather):
    assert command("attrs", "set", weather.url, "sea/ice", "made=1").code == 0
    assert command("attrs", "unset", weather.url, "sea/ice", "made").code == 0
    assert command("rename", weather.url, "sea/ice", "sea/snow").code == 0
    assert command("rewrite-manifests", weather.url, "--path", "sea/snow", "--dry-run").code == 0
    assert command("drop", weather.url, "sea/snow").code == 0
