"""Repositories that earlier versions wrote are read, continued and maintained as they were then.

``tests/helpers/golden/make.py`` made the archives in the folders of the versions. None is made
again: what a version wrote once is read forever. The expectations are those of the reference.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from helpers.builder import add_array
from helpers.golden import records
from helpers.golden.archives import ARCHIVES, NAMES, REPOSITORIES, VERSIONS, Golden, golden
from helpers.golden.contents import contents, objects_of, put_objects, rows
from helpers.golden.virtual import PREFIX, put_sources

from icechunk_format import Repository, maintenance
from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.errors import AlreadyExistsError, ReadOnlyError
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.storage.options import VirtualAccess
from icechunk_format.tables import open_dataset
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.version import __version__
from icechunk_format.workflows.changes.steps import Offset, next_offset


@pytest.fixture(autouse=True, scope="module")
def virtual_sources():
    put_sources()


def seen(repository):
    """Return the contents as JSON has them."""
    return json.loads(json.dumps(contents(repository, (PREFIX,))))


def pairs(values):
    """Return the values of a row with the types of their columns."""
    return zip((float, int), values, strict=True)


def problems(place):
    found = maintenance.verify(place, authorized=[PREFIX]).to_pylist()
    return [row for row in found if row["severity"] == "error"]


def test_this_version_has_its_archives():
    names = {name.partition("/")[2] for name in NAMES if name.startswith(f"{__version__}/")}
    spec_versions = {
        f"{name}-v{n}" for name in ("history", "tables", "types", "virtual") for n in (1, 2)
    }
    assert names == spec_versions | {"records", "virtualized"}
    assert sum(file.stat().st_size for file in ARCHIVES if __version__ in file.parts) < 400_000


@pytest.mark.parametrize("name", REPOSITORIES)
def test_each_version_of_a_repository_is_read_exactly(name):
    expected = golden(name).expected
    found = seen(Repository.open(golden(name).place()))
    for key in ("branches", "tags"):
        assert found[key] == expected[key]
    for snapshot, version in expected["versions"].items():
        assert found["versions"][snapshot] == version
    assert found["versions"].keys() == expected["versions"].keys()


@pytest.mark.parametrize("name", [name for name in REPOSITORIES if "tables" in name])
def test_rows_are_decoded_as_xarray_decodes_them(name):
    expected = golden(name).expected["cells"]
    repository = Repository.open(golden(name).place())
    assert len(expected) == 2
    for snapshot, cells in expected.items():
        keys = ("time", "y", "t2m", "count")
        found = [[row[key] for key in keys] for row in rows(repository, snapshot)]
        wanted = [
            [time, y, *(None if n is None else str(kind(n)) for kind, n in pairs(values))]
            for time, y, *values in cells
        ]
        assert sorted(found, key=str) == sorted(wanted, key=str)


@pytest.mark.needs_reference
@pytest.mark.parametrize("name", REPOSITORIES)
def test_the_reference_reads_a_repository_exactly(name, tmp_path):
    from helpers.golden import peer

    repository = peer.open_repository(golden(name).folder(tmp_path), [PREFIX])
    found = json.loads(json.dumps(peer.contents(repository)))
    assert found == {key: golden(name).expected[key] for key in found}


@pytest.mark.parametrize("name", REPOSITORIES)
def test_a_repository_is_continued_and_maintained(name):
    place = golden(name).place()
    repository = Repository.open(place)
    before = seen(repository)
    assert problems(place) == []
    session = repository.writable_session()
    add_array(session, "/new", (3,))
    session.set_chunks("/new", [[0], [2]], [b"\1", b"\3"])
    tip = str(session.commit("of this version", metadata={"by": "test"}).snapshot_id)
    repository.create_branch("of-this-version", tip)
    repository.create_tag("of-this-version", tip)
    repository = Repository.open(place)
    after = seen(repository)
    assert after["branches"] == before["branches"] | {"main": tip, "of-this-version": tip}
    assert after["tags"] == before["tags"] | {"of-this-version": tip}
    values = before["versions"][before["branches"]["main"]]["values"]
    assert after["versions"][tip]["values"] == values | {"/new": [1, 0, 3]}
    # Everything that a ref reaches survives an expiration and a collection.
    repository.expire_snapshots(datetime.now(UTC))
    maintenance.collect_garbage(place, datetime.now(UTC))
    maintenance.rewrite_manifests(place)
    assert problems(place) == []
    kept = seen(Repository.open(place))
    assert kept["tags"] == after["tags"]
    for snapshot, version in after["versions"].items():
        if snapshot in kept["versions"]:
            assert kept["versions"][snapshot]["values"] == version["values"]


@pytest.mark.parametrize("name", [name for name in REPOSITORIES if name.endswith("v1")])
def test_a_repository_of_spec_version_1_is_upgraded(name):
    place = golden(name).place()
    Repository.open(place).upgrade()
    found = seen(Repository.open(place))
    assert found == {key: golden(name).expected[key] for key in found}


@pytest.mark.parametrize("version", VERSIONS)
def test_settings_of_the_repository_hold(version):
    repository = Repository.open(golden(f"{version}/history-v2").place())
    assert repository.config.inline_chunk_threshold_bytes == 40
    assert len(repository.config.splitting) == 1
    assert repository.metadata == {"owner": "golden", "numbers": [1, 2.5, None]}
    with pytest.raises(ReadOnlyError):
        repository.delete_tag("v1")
    # The names of deleted tags are not given again.
    with pytest.raises(AlreadyExistsError):
        repository.create_tag("gone", repository.resolve())


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("spec_version", [1, 2])
def test_versions_of_applications_are_not_committed_again(version, spec_version):
    place = golden(f"{version}/tables-v{spec_version}").place()
    table = pa.table({"time": pa.array([datetime(2025, 1, 1)]), "y": [0.0], "t2m": [271.0]})
    options = {"mode": "append", "dims": ("time", "y"), "txn_app_id": "nightly"}
    before = Repository.open(place).resolve()
    assert write_table(place, table, WriteOptions(**options, txn_version=8)).is_skipped
    assert Repository.open(place).resolve() == before
    assert not write_table(place, table, WriteOptions(**options, txn_version=9)).is_skipped


@pytest.mark.parametrize("version", VERSIONS)
def test_results_and_copies_go_on_from_their_records(version, tmp_path):
    found = golden(f"{version}/records")
    for place in (records.SOURCE, records.FOLLOWED, records.REDUCED):
        prefix = f"{place.removeprefix('memory://')}/"
        assert not objects_of(place)
        put_objects(
            place,
            {k.removeprefix(prefix): v for k, v in found.objects.items() if k.startswith(prefix)},
        )
    mirrored = {k: v for k, v in found.objects.items() if k.startswith(f"{records.MIRRORED}/")}
    copy = Path(Golden(mirrored, {}).folder(tmp_path)) / records.MIRRORED
    source = Repository.open(records.SOURCE)
    assert rows(source, str(source.resolve())) == found.expected["source"]
    assert records.mirrored_rows(copy) == found.expected["rows"]
    # Nothing is computed or copied again, and a new day is.
    assert records.follow().computed == 0
    assert records.reduce().commit.is_skipped
    assert records.mirror(copy).version == records.mirror(copy).version
    records.write_source(5, 6)
    followed = records.follow()
    assert (followed.computed, followed.full_run) == (1, None)
    reduced = records.reduce()
    assert reduced.full_run is None
    assert not reduced.commit.is_skipped
    records.mirror(copy)
    new = [["2024-02-04 00:00:00", str(y), str(50.0 + y)] for y in range(3)]
    assert records.mirrored_rows(copy) == [*found.expected["rows"], *new]
    # The checkpoint of a stream.
    offset = Offset.parse(found.expected["offset"])
    source = Repository.open(records.SOURCE)
    end = next_offset(source, offset, source.resolve(), ReadRequest(path=records.SOURCE))
    assert end == Offset(snapshot=source.resolve(), position=offset.position + 1)
    assert isinstance(offset.snapshot, SnapshotId)


@pytest.mark.needs_reference
@pytest.mark.parametrize("version", VERSIONS)
def test_virtualized_files_are_known_from_their_record(version):
    pytest.importorskip("virtualizarr")
    from helpers.archives.running import statuses
    from helpers.golden import virtualized

    found = golden(f"{version}/virtualized")
    parts = {part: {} for part in (virtualized.FILES, virtualized.REPOSITORY)}
    for key, data in found.objects.items():
        part, _, rest = key.partition("/")
        parts[part][rest] = data
    assert not objects_of(virtualized.VIRTUALIZED)
    put_objects(virtualized.VIRTUALIZED, parts[virtualized.REPOSITORY])
    files = virtualized.put_files(parts[virtualized.FILES])

    def cells():
        repository = Repository.open(virtualized.VIRTUALIZED)
        access = VirtualAccess((f"file://{virtualized.FOLDER}/",))
        return open_dataset(repository, repository.resolve(), access=access).read("t2m")

    expected = [found.expected["cells"][name] for name in sorted(parts[virtualized.FILES])]
    assert cells().tolist() == [*expected[0], *expected[1]]
    # Nothing is added again, and a new file is.
    assert statuses(virtualized.add_files(files[:2])) == {"0.nc": "known", "1.nc": "known"}
    done = virtualized.add_files(files)
    assert statuses(done) == {"0.nc": "known", "1.nc": "known", "2.nc": "taken"}
    assert cells().tolist() == [*expected[0], *expected[1], *expected[2]]
