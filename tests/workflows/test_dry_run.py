"""Dry runs find missing authorization and failing functions, show the target, and store nothing."""

from __future__ import annotations

import pytest
from helpers.blocks import Source, days, mapped
from helpers.raised import raises
from helpers.reducing import request_of
from helpers.reference.virtual import virtual_chunks

from icechunk_format.errors import InvalidInputError, NotFoundError, UnauthorizedVirtualChunkError
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location
from icechunk_format.workflows.rechunking import RechunkRequest, rechunk_arrays
from icechunk_format.workflows.reducing import reduce_arrays

pytestmark = [pytest.mark.needs_reference, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def source(tmp_path):
    return Source(tmp_path / "source", days(0, 8), chunks=(2, 6, 4))


def _no_tasks(*work):
    raise AssertionError("a task ran")


def rechunk(read, *, dry_run, to):
    request = RechunkRequest(
        read=read,
        target=Location.of(str(to)),
        options=WriteOptions(),
        chunks="auto",
        shards=None,
        encoding={},
        memory=2**20,
    )
    return rechunk_arrays(request, _no_tasks, cores=2, dry_run=dry_run)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_rechunk_without_authorization_fails_before_its_tasks(tmp_path, dry_run):
    built = tmp_path / "virtual"
    virtual_chunks(built)
    with raises(UnauthorizedVirtualChunkError):
        rechunk(ReadRequest(path=str(built)), dry_run=dry_run, to=tmp_path / "to")


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_reduction_without_authorization_fails_before_its_tasks(tmp_path, dry_run):
    built = tmp_path / "virtual"
    virtual_chunks(built)
    request = request_of(built, "mean", "dim_0")
    with raises(UnauthorizedVirtualChunkError):
        reduce_arrays(request, _no_tasks, cores=2, dry_run=dry_run)


def test_a_dry_run_of_a_rechunk_reads_virtual_files_and_shows_the_target(tmp_path):
    built, files = tmp_path / "virtual", tmp_path / "virtual-source"
    virtual_chunks(built)
    read = ReadRequest(path=str(built), virtual_authorize=(files.as_uri() + "/",))
    done = rechunk(read, dry_run=True, to=tmp_path / "to")
    assert done.commit is None
    assert set(done.target.arrays) == {path.strip("/") for path in done.arrays}
    assert "PlannedGroup / of" in repr(done.target)
    assert "float64" in repr(done.target)
    assert "chunks" in done.target._repr_html_()
    assert not (tmp_path / "to").exists()
    for file in files.iterdir():
        file.unlink()
    with pytest.raises(NotFoundError):
        rechunk(read, dry_run=True, to=tmp_path / "to")


@pytest.mark.parametrize("follow", [True, False])
def test_a_dry_run_of_map_blocks_calls_the_function_once(source, tmp_path, follow):
    calls = []

    def function(ds, block):
        calls.append(block.number)
        return (ds[["t2m"]] * 2).astype("f4").assign_attrs(title="double")

    done = mapped(
        source, function, tmp_path / "to", blocks={"time": 2}, dry_run=True, follow=follow
    )
    assert calls == [0]
    assert (done.commit, done.blocks, done.computed) == (None, 4, 4)
    assert set(done.arrays) == {"/t2m", "/time", "/y", "/x"}
    assert not (tmp_path / "to").exists()
    text = repr(done.target)
    assert "8 × 6 × 4 in chunks of 2 × 6 × 4" in text
    assert "float32" in text
    assert "title: double" in text
    if follow:
        mapped(source, function, tmp_path / "to", blocks={"time": 2}, follow=True)
        source.put("t2m", (5, 0, 0), 0.0)
        tip, before = Repository.open(str(tmp_path / "to")).resolve(), len(calls)
        again = mapped(
            source, function, tmp_path / "to", blocks={"time": 2}, dry_run=True, follow=True
        )
        assert (again.commit, again.computed, len(calls)) == (None, 1, before + 1)
        assert Repository.open(str(tmp_path / "to")).resolve() == tip


def test_a_dry_run_of_map_blocks_finds_a_failing_function(source, tmp_path):
    def function(ds):
        raise ValueError("no such thing")

    with pytest.raises(InvalidInputError, match="no such thing"):
        mapped(source, function, tmp_path / "to", blocks={"time": 2}, dry_run=True)
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("dry_run", [True, False])
def test_blocks_without_authorization_fail_before_their_tasks(tmp_path, dry_run):
    built = tmp_path / "virtual"
    virtual_chunks(built)

    class Place:
        path = built

    with raises(UnauthorizedVirtualChunkError):
        mapped(Place, len, tmp_path / "to", run=_no_tasks, dry_run=dry_run, template=None)
    assert not (tmp_path / "to").exists()
