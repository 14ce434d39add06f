"""Options that fit no file are refused after the first file, before the others are opened."""

from __future__ import annotations

import pytest
from helpers.archives import files as made
from helpers.archives.running import by_reference, virtualize
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.virtualizing.planning.copies import Copying

pytest.importorskip("virtualizarr")
pytestmark = [
    pytest.mark.needs_reference,
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
]


def counting(seen):
    def run(work, tasks):
        for task in tasks:
            if work.func.__name__ == "run_scan":
                seen.extend(file.url.rpartition("/")[2] for _, file, _ in task)
            yield work(task)

    return run


@pytest.mark.parametrize(
    ("how", "option"),
    [
        ({"concat_dim": ()}, "concat_dim"),
        ({"concat_dim": "tine"}, "concat_dim"),
        ({"copying": Copying(which="all", chunks={"tine": 2})}, None),
        ({"copying": Copying(which="all", encoding={"t3m": {"dtype": "f4"}})}, None),
    ],
    ids=["no dimension", "a wrong dimension", "wrong chunks", "a wrong encoding"],
)
def test_wrong_options_are_found_by_the_first_file(how, option, tmp_path):
    files = made.archive(tmp_path / "files", count=5)
    seen: list[str] = []
    with raises(InvalidInputError) as caught:
        virtualize(files, tmp_path / "repository", run=counting(seen), **how)
    assert seen == ["0.nc"]
    assert option is None or caught.value.facts["option"] == option
    assert not [path for path in (tmp_path / "repository").rglob("*") if path.is_file()]


def test_each_file_is_scanned_once(tmp_path):
    files = made.archive(tmp_path / "files", count=5)
    seen: list[str] = []
    virtualize(files, tmp_path / "repository", run=counting(seen))
    assert seen == [f"{number}.nc" for number in range(5)]
    assert by_reference(tmp_path / "repository").sizes["time"] == 5 * made.STEPS


def test_a_first_file_that_cannot_be_read_is_reported_with_the_others(tmp_path):
    files = made.archive(tmp_path / "files", count=3)
    with open(files[0], "wb") as file:
        file.write(b"no file of data")
    with raises(InvalidInputError) as caught:
        virtualize(files, tmp_path / "repository")
    assert caught.value.facts["report"]["status"][0].as_py() == "refused"
