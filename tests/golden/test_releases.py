"""Each release of the reference reads what we write, and we read what it writes.

``make matrix`` installs every release of the reference in an environment of its own, in the folder
``RELEASES``, and runs this. A cell of the table is a release and a spec version that it knows.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
from golden.test_golden import REPOSITORIES, golden
from helpers.builder import add_array
from helpers.golden import peer
from helpers.golden.contents import contents
from helpers.golden.virtual import PREFIX, put_sources

from icechunk_format import Repository, maintenance

RELEASES = Path(
    os.environ.get("RELEASES") or Path.home() / ".cache" / "icechunk-spark" / "releases"
)
INSTALLED = sorted(
    (mark.parent.name for mark in RELEASES.glob("*/.ready")),
    key=lambda version: [int(part) for part in version.split(".")],
)
CELLS = [
    (release, spec_version)
    for release in INSTALLED
    for spec_version in ((1,) if release.startswith("1.") else (1, 2))
]
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not INSTALLED, reason="no release is installed; run make matrix"),
]


def released(release, command, folder, spec_version):
    """Run the program of the reference in a release; return what it has seen."""
    program = [RELEASES / release / "bin" / "python", "-W", "ignore", peer.__file__]
    done = subprocess.run(
        [*program, command, str(folder), str(spec_version), PREFIX],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def ours(folder):
    found = contents(Repository.open(str(folder)), (PREFIX,))
    return json.loads(json.dumps(found))


@pytest.fixture(scope="module", autouse=True)
def virtual_sources():
    put_sources()


@pytest.mark.parametrize(("release", "spec_version"), CELLS)
def test_we_read_what_a_release_writes_and_it_what_we_add(release, spec_version, tmp_path):
    folder = tmp_path / "repository"
    seen = released(release, "write", folder, spec_version)
    assert len(seen["versions"]) >= 3
    assert ours(folder) == seen
    repository = Repository.open(str(folder))
    session = repository.writable_session()
    add_array(session, "/ours", (4,))
    session.set_chunks("/ours", [[0], [3]], [b"\1", b"\2"])
    session.commit("ours", metadata={"by": "us"})
    repository.create_tag("ours", repository.resolve())
    assert released(release, "read", folder, spec_version) == ours(folder)
    # And in turn, after a collection by us.
    seen = released(release, "append", folder, spec_version)
    assert ours(folder) == seen
    assert "/appended" in seen["versions"][seen["branches"]["main"]]["values"]
    found = maintenance.verify(str(folder)).to_pylist()
    assert not [row for row in found if row["severity"] == "error"]


@pytest.mark.parametrize("name", REPOSITORIES)
@pytest.mark.parametrize("release", INSTALLED)
def test_a_release_reads_and_continues_what_we_wrote(release, name, tmp_path):
    spec_version = int(name[-1])
    if spec_version == 2 and release.startswith("1."):
        pytest.skip("releases 1.x know spec version 1 alone")
    folder = golden(name).folder(tmp_path)
    seen = released(release, "read", folder, spec_version)
    assert seen == {key: golden(name).expected[key] for key in seen}
    seen = released(release, "append", folder, spec_version)
    assert ours(folder) == seen
