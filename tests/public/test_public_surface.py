"""Both packages offer exactly these public names; a change here changes users' imports."""

import subprocess
import sys

import icechunk_format

FORMAT_NAMES = {
    "AlreadyExistsError",
    "ChunkModifiedError",
    "CommitOutcomeUnknownError",
    "ConflictError",
    "FormatError",
    "IcechunkError",
    "InvalidInputError",
    "Location",
    "NotFoundError",
    "ReadOnlyError",
    "Repository",
    "SnapshotId",
    "StorageError",
    "UnauthorizedVirtualChunkError",
    "UnsupportedError",
}


def test_format_library_offers_these_names():
    assert set(icechunk_format.__all__) == FORMAT_NAMES
    for name in FORMAT_NAMES:
        assert getattr(icechunk_format, name).__name__ == name


def test_dir_shows_the_public_names():
    assert dir(icechunk_format) == sorted([*icechunk_format.__all__, "maintenance"])
    assert icechunk_format.maintenance.collect_garbage


def test_a_wrong_name_is_an_ordinary_attribute_error():
    assert not hasattr(icechunk_format, "Repo")


def test_reporting_and_showing_load_nothing_before_they_are_used():
    code = (
        "import sys, icechunk_format.tables.dataset, icechunk_format.maintenance\n"
        "print([m for m in sorted(sys.modules) if '.display.' in m or m in ('tqdm', 'rich')])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert loaded.stdout.strip() == "[]"


def test_importing_the_errors_loads_nothing_heavy():
    code = (
        "import sys, icechunk_format.errors\n"
        "print(sorted({'numpy', 'pyarrow', 'obstore', 'fsspec', 'sqlglot'} & set(sys.modules)))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert loaded.stdout.strip() == "[]"
