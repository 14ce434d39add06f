"""The command line copies and imports repositories, and a second run finds nothing to do."""

import json

from helpers.files.draft_repositories import some_history, write_numbered
from helpers.grids.weather_repository import write_weather
from helpers.sessions.model import array_document, group_document

from icechunk_format.command_line.views.documents import document_keys
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.tables import open_dataset


def sound_weather(url):
    """Return a repository whose chunk objects are all there."""
    found = write_weather(url)
    session = found.repository.writable_session()
    session.set_chunks("/t", [(0, 0), (1, 1)], [b"a" * 600, b"b" * 700])
    session.commit("Store what is referred to")
    return found


def test_copy_takes_history_along_and_can_run_again(command, tmp_path):
    source = Repository.create(str(tmp_path / "source"))
    session = source.writable_session()
    session.create_group("/", b'{"zarr_format":3,"node_type":"group","attributes":{}}')
    newest = str(session.commit("Begin").snapshot_id)
    target = tmp_path / "target"
    planned = command("copy", tmp_path / "source", target, "--dry-run")
    assert planned.lines == ["would copy at most 2 snapshots, 0 manifests, 0 chunks"]
    assert not target.exists()
    first = command("copy", tmp_path / "source", target)
    assert first.code == 0, first.err
    assert first.lines[0].startswith("copied ")
    assert first.lines[-1] == f"branch main of {target} is now at {newest}"
    again = json.loads(command("copy", tmp_path / "source", target, "--json").out)
    assert list(again) == list(document_keys("copy"))
    assert (again["chunks"], again["snapshot_id"]) == (0, newest)
    log = json.loads(command("log", target, "--json").out)["snapshots"]
    assert [entry["message"] for entry in log] == ["Begin", "Repository initialized"]


def test_a_copy_over_another_history_is_a_conflict(command, tmp_path):
    session = Repository.create(str(tmp_path / "target")).writable_session()
    session.create_group("/", b'{"zarr_format":3,"node_type":"group","attributes":{}}')
    session.commit("Something else")
    source = sound_weather(str(tmp_path / "source"))
    outcome = command("copy", source.url, tmp_path / "target")
    assert outcome.code == 5
    assert len(outcome.err.splitlines()) == 1


def test_options_of_the_target_are_its_own(command, weather):
    outcome = command("copy", weather.url, "memory://copy-there", "--target-option", "storage.x=1")
    assert outcome.code == 2
    assert "storage.x" in outcome.err


def test_import_draft(command, tmp_path):
    place = Location("memory://command-line-draft")
    outside = tmp_path / "outside"
    outside.mkdir()
    write_numbered(open_storage(place), some_history(), outside)
    target = "memory://command-line-imported"
    planned = json.loads(command("import-draft", place.url, target, "--dry-run", "--json").out)
    assert list(planned) == list(document_keys("import-draft"))
    assert planned["dry_run"] is True
    assert not Repository.exists(target)
    done = command("import-draft", place.url, target)
    assert done.code == 0, done.err
    assert done.lines[0].startswith(f"imported {planned['snapshots']} snapshot")
    assert set(Repository.open(target).branches()) >= set(planned["branches"])
    assert command("import-draft", place.url, target).code == 1


def test_copying_a_branch_moves_the_branch_of_that_name(command, tmp_path):
    place, target = tmp_path / "source", tmp_path / "target"
    source = Repository.create(str(place))
    source.create_branch("dev", source.resolve())
    assert command("copy", place, target).code == 0
    main = Repository.open(str(target)).branches()["main"]
    session = source.writable_session("dev")
    session.create_group("/", b'{"zarr_format":3,"node_type":"group","attributes":{}}')
    newest = session.commit("On dev").snapshot_id
    copied = command("copy", place, target, "--branch", "dev")
    assert copied.lines[-1] == f"branch dev of {target} is now at {newest}"
    assert Repository.open(str(target)).branches() == {"dev": newest, "main": main}


def test_arrays_are_rechunked(command, tmp_path):
    source = str(tmp_path / "maps")
    session = Repository.create(source).writable_session()
    session.create_group("/", group_document())
    document = array_document((4, 6), (1, 6), dimension_names=["y", "x"])
    session.create_array("/t", document, shape=(4, 6), num_chunks=(4, 1), dimension_names="yx")
    session.set_chunks("/t", [[i, 0] for i in range(4)], [bytes([i] * 6) for i in range(4)])
    session.commit("maps")
    planned = command("rechunk", source, "--chunks", "y=-1,x=2", "--dry-run", "--json")
    assert planned.code == 0, planned.err
    assert json.loads(planned.out)["snapshot_id"] is None
    target = str(tmp_path / "series")
    done = command("rechunk", source, "--chunks", "y=-1,x=2", "--to", target, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["arrays"]
    assert json.loads(done.out).keys() == document_keys("rechunk").keys()
    tagged = command("rechunk", target, "--chunks", "y=2", "--message", "Halves", "--metadata", "5")
    assert "option 'metadata'" in tagged.err
    assert command("rechunk", source, "--chunks", "many").code != 0
    cut = ("--to-group", "part", "--isel", "y=1:3; x=0:4")
    part = command("rechunk", source, "--chunks", "y=-1,x=2", *cut, "--json")
    absent = command("rechunk", source, "--chunks", "y=-1", "--to-group", "b", "--sel", "x=1")
    assert "no labels" in absent.err
    assert part.code == 0, part.err
    assert json.loads(part.out)["arrays"] == ["/part/t"]
    repository = Repository.open(source)
    found = open_dataset(repository, repository.resolve(), "part").read("t")
    assert found.tolist() == [[1] * 4, [2] * 4]
