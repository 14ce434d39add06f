"""Whatever a repository says, its HTML holds our own elements, texts that print, and no end of it.

Pages are parsed as a browser does: elements and attributes are those that we make, all of them are
closed, and texts are data.
"""

from dataclasses import replace

import pytest
from helpers.files.hostile_texts import NASTY, check_printable, hostile_repository
from helpers.grids.weather_repository import add_array, group_document
from helpers.pages import Page
from hypothesis import example, given, settings
from hypothesis import strategies as st

from icechunk_format.display import shown_by
from icechunk_format.display.markup import brief, escaped
from icechunk_format.drafts.importing import ImportReport
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.repo_info.file import SnapshotInfo
from icechunk_format.encoding.values.metadata_items import MetadataItems
from icechunk_format.errors import NotFoundError
from icechunk_format.groups.changing import WriteResult
from icechunk_format.repository import Repository
from icechunk_format.repository.history import Changes
from icechunk_format.repository.history.diff import Move
from icechunk_format.repository.history.graph import GraphEntry
from icechunk_format.tables import open_dataset

ID = SnapshotId(bytes(12))
SCRIPT = "</pre></style></bdi><script>alert(1)</script><img src=x onerror='alert(1)'>"
QUOTES = "\"'` onmouseover=alert(1) x=\"'"
BIDI = "\u202egpj.exe\u2066\u200f\u2029"
ENTITIES = "&lt;b&gt; &#60;script&#62; &amp;amp;"
ODD = "\ud800 \x00 \x1b[31m \x9b \ufeff \x7f"
TEXTS = [SCRIPT, QUOTES, BIDI, ENTITIES, ODD, NASTY, "x" * 3000, "\n" * 3000, "<!--", "]]>", "<?"]
LONGEST = 200_000

texts = st.one_of(st.sampled_from(TEXTS), st.text(), st.text(alphabet="<>&'\"/=! -\u202ea"))
json_values = st.recursive(
    st.one_of(texts, st.integers(), st.floats(), st.none(), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=6,
)


def check(value):
    """Fail where a value's texts act, or do not end; return its page."""
    text, html = repr(value), value._repr_html_()
    check_printable(text)
    assert "cannot be shown" not in text + html
    assert len(text) < LONGEST
    assert len(html) < 2 * LONGEST
    return Page(html)


def version(text, metadata=None):
    return SnapshotInfo(
        id=ID,
        parent_id=ID,
        flushed_at=0,
        message=text,
        metadata_items=MetadataItems(items=(), spec_version=2) if metadata is None else metadata,
    )


@given(texts)
@settings(max_examples=60, deadline=None)
@example(SCRIPT)
@example("x" * 10**6)
def test_texts_of_versions_are_data(text):
    entry = GraphEntry(snapshot=version(text), branches=(text, "main"), tags=(text,) * 30)
    check(entry.snapshot)
    page = check(entry)
    assert "main" in page.texts


@given(texts, st.integers(0, 3))
@settings(max_examples=60, deadline=None)
@example(SCRIPT, 2)
def test_paths_of_changes_are_data(text, count):
    changes = Changes(
        new_groups=(text,) * count,
        deleted_arrays=(text,),
        moved_nodes=(Move(from_path=text, to_path=text),),
        updated_chunks={text: [0] * count},
        missing_logs=(text,),
    )
    check(changes)


@given(texts, json_values)
@settings(max_examples=60, deadline=None)
@example(SCRIPT, {SCRIPT: [SCRIPT]})
def test_values_of_results_are_data(text, value):
    check(WriteResult(branch=text, snapshot_id=ID, is_skipped=True, reason=text))
    report = ImportReport(
        dry_run=False,
        kind=text,
        snapshots=1,
        branches=(text,) * 7,
        tags=(text,),
        chosen_main=text,
        native_chunks=2**80,
        inline_chunks=1,
        virtual_chunks=1,
        bytes_copied=2**80,
        virtual_prefixes=(text,),
        snapshot_ids={text: text},
    )
    check(report)
    assert len(brief(value)) <= 201
    check_printable(brief(value))
    Page(f"<div>{escaped(brief(value))}</div>")


@given(texts, json_values)
@settings(max_examples=40, deadline=None)
@example(SCRIPT, {SCRIPT: SCRIPT})
def test_names_and_attributes_of_nodes_are_data(text, value):
    name = text[:200].replace("/", "_").replace("\x00", "").encode(errors="replace").decode() or "x"
    name = f"a{name}"
    stored = {"text": text, "value": value, text: 1}
    try:
        document = group_document(**stored)
    except ValueError:
        return  # it is not Unicode, and no document can hold it
    repository = Repository.create("memory://hostile-html", check_clean_root=False)
    session = repository.writable_session()
    session.create_group("/", group_document())
    session.create_group(f"/{name}", document)
    add_array(session, f"/{name}/{name}", (3, 4), (2, 2), dims=(name, "x"), attributes=stored)
    tip = session.commit("").snapshot_id
    check(repository.snapshot(tip))
    page = check(open_dataset(repository, tip, f"/{name}"))
    assert "(2)" in page.text or "(3)" in page.text
    repository.storage.delete_many(["repo"])


def test_a_hostile_repository_is_shown_as_it_is():
    repository = hostile_repository("memory://hostile-everywhere")
    page = check(repository)
    assert "\\x1b[31m[red]red" in page.text
    tip = repository.resolve()
    for value in (*repository.graph(), *repository.ancestry(), repository.snapshot(tip)):
        check(value)
    check(repository.diff("1CECHNKREP0F1RSTCMT0", tip))
    snapshot = repository.snapshot(tip)
    for node in snapshot.nodes:
        if node.array is None:
            check(open_dataset(repository, tip, str(node.path)))


def test_damaged_metadata_are_told():
    broken = Repository.create("memory://hostile-damaged")
    session = broken.writable_session()
    session.create_group("/", b"{")
    session.create_array("/a", b"[1, 2", shape=(3,), num_chunks=(3,))
    tip = session.commit("damage").snapshot_id
    page = check(broken.snapshot(tip))
    assert "zarr.json cannot be read" in page.text
    assert "! " in repr(broken.snapshot(tip))


def test_nothing_raises():
    @shown_by("history.info")
    class Broken:
        pass

    assert repr(Broken()) == "<Broken, which cannot be shown: AttributeError>"
    Page(Broken()._repr_html_())


def test_what_is_long_is_counted():
    many = [
        replace(version(f"number {number}"), id=SnapshotId(number.to_bytes(12, "big")))
        for number in range(1, 3001)
    ]
    changes = check(Changes(new_arrays=tuple(f"/a{number}" for number in range(3000))))
    assert "… and 2,950 more changes" in changes.text
    entry = GraphEntry(snapshot=many[0], branches=tuple(f"b{n}" for n in range(3000)), tags=())
    assert "… and 2,980 more names" in check(entry).text
    repository = Repository.create("memory://hostile-many", check_clean_root=False)
    session = repository.writable_session()
    session.create_group("/", group_document(**{f"name {n}": n for n in range(500)}))
    for number in range(300):
        add_array(session, f"/a{number:03}", (2,), (1,), dims=(f"x{number}",))
    tip = session.commit("many").snapshot_id
    snapshot, dataset = repository.snapshot(tip), open_dataset(repository, tip)
    assert "… and 201 more nodes" in check(snapshot).text
    page = check(dataset)
    assert "… and 250 more arrays" in page.text
    assert "… and 480 more attributes" in page.text
    assert "… and 280 more dimensions" in page.text
    assert len(repr(dataset).splitlines()) < 90
    assert len(repr(snapshot).splitlines()) < 60


@pytest.mark.parametrize("error", [NotFoundError("nothing here <b>", kind="x"), OSError("no")])
def test_a_repository_that_fails_is_still_shown(error, monkeypatch):
    repository = Repository.create(f"memory://hostile-failing-{type(error).__name__}")

    def fail(self):
        raise error

    monkeypatch.setattr(Repository, "graph", fail)
    Page(repository._repr_html_())
    if isinstance(error, NotFoundError):
        assert "nothing here <b>" in check(repository).text
