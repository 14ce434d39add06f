"""A repository is shown as it is now, at the price of one request; its graph leads to parents."""

import re

import pytest
from helpers.grids.weather_repository import write_weather
from helpers.pages import Page
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.display.history import repository_html
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.object_keys import REPO
from icechunk_format.encoding.repo_info.file import SnapshotInfo
from icechunk_format.repository import Repository
from icechunk_format.repository.history.graph import snapshot_graph
from icechunk_format.storage.location import Location
from icechunk_format.storage.memory import MemoryStorage


@pytest.fixture
def requests(monkeypatch):
    """Note every verb that a storage in memory is asked for, with its key."""
    noted = []
    for verb in ("get", "get_many", "head", "list", "put", "put_many", "delete_many"):
        plain = getattr(MemoryStorage, verb)

        def asked(self, what, *more, _plain=plain, _verb=verb, **named):
            noted.append((_verb, what))
            return _plain(self, what, *more, **named)

        monkeypatch.setattr(MemoryStorage, verb, asked)
    return noted


def test_one_request_tells_that_nothing_changed(requests):
    weather = write_weather("memory://show-requests")
    repository = Repository.open(weather.url)
    repository.graph()
    requests.clear()
    page = Page(repository._repr_html_())
    assert requests == [("head", REPO)]
    for text in ("main", "audit", "v1", "Change it", "Look at it", "Write it", weather.second):
        assert text in page.texts


def test_what_was_committed_since_is_shown(requests):
    weather = write_weather("memory://show-changed")
    repository = Repository.open(weather.url)
    session = repository.writable_session()
    session.delete("/t")
    session.commit("Much later")
    requests.clear()
    assert "Much later" in Page(repository._repr_html_()).texts
    assert set(requests) <= {("head", REPO), ("get", REPO)}


def test_version_1_is_not_read(requests):
    weather = write_weather("memory://show-v1", spec_version=1)
    repository = Repository.open(weather.url)
    requests.clear()
    assert "no file was read: call graph()" in Page(repository._repr_html_()).text
    assert requests == []


def test_text_and_results_ask_nobody(requests):
    weather = write_weather("memory://show-texts")
    repository = Repository.open(weather.url)
    entry, snapshot = repository.graph()[0], repository.snapshot(weather.first)
    changes = repository.diff(weather.first, weather.second)
    requests.clear()
    assert repr(repository) == "Repository('memory://show-texts', spec_version=2)"
    for value in (entry, entry.snapshot, snapshot, changes):
        repr(value)
        value._repr_html_()
    assert requests == []


def test_a_damaged_or_deleted_repository_says_so():
    weather = write_weather("memory://show-damaged")
    repository = Repository.open(weather.url)
    repository.storage.put(REPO, b"no repository")
    assert "repo" in Page(repository._repr_html_()).text
    repository.storage.delete_many([REPO])
    page = Page(repository._repr_html_())
    assert "was deleted after it was opened" in page.text
    assert "memory://show-damaged" in page.text


def test_texts_of_versions():
    weather = write_weather("memory://show-lines")
    [first] = (e for e in weather.repository.graph() if str(e.snapshot.id) == weather.first)
    found = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "NOW", repr(first))
    assert found == (
        f"<Snapshot {weather.first}, NOW UTC, after 1CECHNKREP0F1RSTCMT0: Write it (tag v1)>"
    )
    assert repr(weather.repository.diff(weather.first, weather.second)).splitlines() == [
        "<Changes: 2 changes, 1 chunk>",
        "  ~ /sea  metadata of a group",
        "  ~ /t  1 chunk",
    ]


class Drawn:
    """A repository with a history that was never stored."""

    spec_version = 2
    location = Location("memory://drawn")

    def __init__(self, entries):
        self.graph = lambda: entries


@st.composite
def forests(draw):
    count = draw(st.integers(1, 20))
    parents = [
        draw(st.one_of(st.none(), st.integers(1, number - 1))) if number > 1 else None
        for number in range(1, count + 1)
    ]
    return parents, draw(st.lists(st.integers(1, count), min_size=1, max_size=6))


@given(forests())
@settings(deadline=None)
def test_lines_lead_from_each_version_to_its_parent(forest):
    parents, tips = forest
    ids = [SnapshotId(number.to_bytes(12, "big")) for number in range(len(parents) + 1)]
    infos = {
        ids[number]: SnapshotInfo(
            id=ids[number],
            parent_id=None if parent is None else ids[parent],
            flushed_at=number,
            message=str(number),
        )
        for number, parent in enumerate(parents, start=1)
    }
    entries = snapshot_graph(infos, {f"b{tip}": ids[tip] for tip in tips}, {})
    page = Page(repository_html(Drawn(entries)))
    circles = [(float(a["cx"]), float(a["cy"])) for tag, a in page.elements if tag == "circle"]
    assert len(circles) == len(entries)
    place = {entry.snapshot.id: circle for entry, circle in zip(entries, circles, strict=True)}
    edges = {}
    for tag, found in page.elements:
        if tag == "path":
            x, y = map(float, re.match(r"M(\d+) (\d+)", found["d"]).groups())
            bent = re.search(r"C.* (\d+) (\d+)$", found["d"])
            down = re.search(r"V(\d+)$", found["d"])
            end = tuple(map(float, bent.groups())) if bent else (x, float(down[1]))
            assert edges.setdefault((x, y), end) == end
    for entry in entries:
        at, parent = place[entry.snapshot.id], entry.snapshot.parent_id
        if parent is None:
            assert at not in edges
            continue
        while at != place[parent]:
            at = edges[at]
            assert at == place[parent] or at not in circles


def test_a_long_history_goes_on_below_what_is_shown():
    ids = [SnapshotId(number.to_bytes(12, "big")) for number in range(101)]
    infos = {
        ids[n]: SnapshotInfo(id=ids[n], parent_id=ids[n - 1], flushed_at=n, message=str(n))
        for n in range(1, 101)
    }
    page = Page(repository_html(Drawn(snapshot_graph(infos, {"main": ids[100]}, {}))))
    assert "… and 80 more snapshots" in page.text
    assert sum(tag == "circle" for tag, _ in page.elements) == 20
    assert sum(tag == "path" for tag, _ in page.elements) == 20
