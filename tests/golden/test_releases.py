"""Each release of the reference reads what we write, and we read what it writes.

``make matrix`` installs every release of the reference in an environment of its own, in a cache,
and runs this. A cell of the table is a release and a spec version that it knows.
"""

import json
import subprocess

import pytest
from helpers.builder import add_array
from helpers.golden import peer
from helpers.golden.archives import REPOSITORIES, golden
from helpers.golden.contents import contents
from helpers.golden.releases import RELEASES, installed
from helpers.golden.virtual import PREFIX, put_sources

from icechunk_format import Repository, maintenance

INSTALLED = installed()
CELLS = [
    (release, spec_version)
    for release in INSTALLED
    for spec_version in ((1,) if release.startswith("1.") else (1, 2))
]
# These read the wrong end of shards that are stored in manifests, also of those that they wrote.
WITHOUT_INLINE_SHARDS = ("1.0.0", "1.0.1", "1.0.2")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not INSTALLED, reason="no release is installed; run make matrix"),
]


def released(release, *works):
    """Let a release do several things with repositories; return what each contains then."""
    done = subprocess.run(
        [RELEASES / release / "bin" / "python", "-W", "ignore", peer.__file__],
        input=json.dumps([[*work, [PREFIX]] for work in works], default=str),
        capture_output=True,
        text=True,
        timeout=500,
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
    [seen] = released(release, ("write", folder, spec_version))
    assert ours(folder) == seen
    assert len(seen["versions"]) >= 3
    repository = Repository.open(str(folder))
    session = repository.writable_session()
    add_array(session, "/ours", (4,))
    session.set_chunks("/ours", [[0], [3]], [b"\1", b"\2"])
    session.commit("ours", metadata={"by": "us"})
    repository.create_tag("ours", repository.resolve())
    expected = ours(folder)
    works = [(command, folder, spec_version) for command in ("read", "append")]
    before, after = released(release, *works)
    assert before == expected
    assert ours(folder) == after
    assert "/appended" in after["versions"][after["branches"]["main"]]["values"]
    found = maintenance.verify(str(folder)).to_pylist()
    assert not [row for row in found if row["severity"] == "error"]


@pytest.mark.parametrize("release", INSTALLED)
def test_a_release_reads_and_continues_what_we_wrote(release, tmp_path):
    # Releases 1.x know spec version 1 alone.
    names = [name for name in REPOSITORIES if name.endswith("v1") or not release.startswith("1.")]
    if release in WITHOUT_INLINE_SHARDS:
        names = [name for name in names if "/tables" not in name]
    works = []
    for name in names:
        folder = golden(name).folder(tmp_path / name)
        works += [(command, folder, int(name[-1])) for command in ("read", "append")]
    seen = released(release, *works)
    wrong = {}
    for number, name in enumerate(names):
        before, after = seen[2 * number : 2 * number + 2]
        if isinstance(before, str):
            wrong[name] = before
        elif before != {key: golden(name).expected[key] for key in before}:
            wrong[name] = "reads something else"
        elif ours(tmp_path / name) != after:
            wrong[name] = f"continues otherwise: {str(after)[:200]}"
    assert wrong == {}
