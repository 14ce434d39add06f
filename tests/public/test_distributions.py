"""The sdist has what is needed to build and test, the wheel that is built from it has the packages.

``make dist`` tries both in empty environments, which downloads what they need.
"""

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path, PurePosixPath

import pytest

import icechunk_spark

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "icechunk_spark": ROOT / "icechunk_spark",
    "icechunk_format": ROOT / "format/icechunk_format",
}


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Build the sdist, and the wheel from the sdist, as a release does."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder


def test_the_sdist_has_code_and_no_data(dist):
    (file,) = dist.glob("*.tar.gz")
    assert file.stat().st_size < 4 << 20
    with tarfile.open(file) as archive:
        names = [PurePosixPath(*PurePosixPath(name).parts[1:]) for name in archive.getnames()]
    have = {str(name) for name in names}
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", ".ci/find-python"} <= have
    tests = {name.suffix for name in names if name.parts[0] == "tests"}
    assert tests == {".json", ".py", ".txt", ".xz"}, (
        "beside code only the list of public names, what Spark gave, and repositories of versions"
    )
    assert not [name for name in names if "__pycache__" in name.parts]


def test_links_of_the_description_are_absolute(dist):
    """PyPI shows the README without the files beside it."""
    (file,) = dist.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        said = message_from_bytes(archive.read(name)).get_payload()
    links = re.findall(r"\]\(([^)\s]+)", said)
    assert len(links) > 20
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    at = f"v{icechunk_spark.__version__}/"
    own = [link for link in links if "/icechunk-spark/icechunk-spark/" in link]
    assert own
    for link in own:
        assert (ROOT / link.partition(at)[2].partition("#")[0]).exists(), link


def test_the_wheel_has_the_packages_and_their_types(dist):
    (file,) = dist.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        have = set(archive.namelist())
        (metadata,) = (name for name in have if name.endswith(".dist-info/METADATA"))
        said = message_from_bytes(archive.read(metadata))
    assert said["Version"] == icechunk_spark.__version__
    for package, folder in PACKAGES.items():
        files = [file for file in folder.rglob("*") if file.suffix in {".py", ".typed", ".java"}]
        wanted = {f"{package}/{file.relative_to(folder).as_posix()}" for file in files}
        assert wanted == {name for name in have if name.startswith(f"{package}/")}
        assert f"{package}/py.typed" in wanted
    others = {name.split("/")[0] for name in have} - set(PACKAGES)
    assert others == {"pyspark_icechunk.py", metadata.split("/")[0]}
