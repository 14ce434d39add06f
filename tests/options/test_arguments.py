"""Arguments of functions are checked by their signatures, and become values of Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError, NotFoundError
from icechunk_format.options.arguments import checked_arguments
from icechunk_format.options.keywords import parse_arguments
from icechunk_format.options.parse import parse_read_options
from icechunk_format.storage.location import Location


@checked_arguments
def call(
    path: str = "r",
    *,
    names: Sequence[str] | None = None,
    sizes: Mapping[str, int] | Literal["auto"] = "auto",
    flag: bool = False,
    word: Literal["fail", "skip"] = "fail",
    share: float = 0.5,
    **options: Any,
) -> tuple[Any, ...]:
    return path, names, sizes, flag, word, share


def test_values_of_numpy_and_paths_become_those_of_python():
    found = call(
        Path("r"),
        names=np.array(["a", "b"]),
        sizes={np.str_("x"): np.int64(3)},
        flag=np.bool_(True),
        word=np.str_("skip"),
        share=np.float32(0.5),
    )
    assert found == ("r", ("a", "b"), {"x": 3}, True, "skip", 0.5)
    assert [type(one) for one in found] == [str, tuple, dict, bool, str, float]
    assert call(names="a, b")[1] == ("a", "b")
    assert call(names=None, sizes="auto")[1:3] == (None, "auto")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("path", None, "path must be a string, but is None"),
        ("names", 5, "names must be a list of strings, or None, but is 5 of type int"),
        ("names", [5], "a list of strings"),
        ("sizes", {"x": True}, "a dictionary with whole numbers by name or 'auto'"),
        ("sizes", "automatic", "but is 'automatic'"),
        ("flag", "no", "flag must be True or False, but is 'no'"),
        ("flag", 1, "flag must be True or False"),
        ("word", "FAIL", "word must be 'fail' or 'skip', but is 'FAIL'"),
        ("share", "half", "share must be a number"),
    ],
)
def test_wrong_values_are_named(name, value, words):
    with raises(InvalidInputError, option=name) as caught:
        call(**{name: value})
    assert words in str(caught.value)


def test_messages_show_the_beginning_of_a_long_value():
    for long in ("x" * 10**6, ["x"] * 10**6):
        with pytest.raises(InvalidInputError) as caught:
            call(word=long)
        assert len(str(caught.value)) < 400
    message = str(NotFoundError(f"branch {'y' * 10**6!r} is missing, as is 'main'"))
    assert message == f"branch '{'y' * 200}…' is missing, as is 'main'"
    prose = f"Spark's page {'says ' * 100} the user's name"
    assert str(NotFoundError(prose)) == prose


def test_unusual_values_of_options():
    assert parse_arguments(np.str_("r"), {"branch": np.str_("main")}, "read").branch == "main"
    for options in (
        {"sel": {5: 5}},
        {"isel": {None: 1}},
        {"variables": "[" * 5_000},
        {"virtual_authorize": "[" * 5_000},
        {"rowsPerPartition": "1" * 5_000},
        {"readAheadBytes": "1" * 5_000},
        {5: "x"},
    ):
        with pytest.raises(InvalidInputError):
            parse_arguments("r", options, "read")
    for path in ("http://[", "file://[", "\ud800", "s3://b/\udcff"):
        with pytest.raises(InvalidInputError):
            Location(path)
    for path in (None, 5, ["a"], {"b": 1}):
        with raises(InvalidInputError, option="path"):
            parse_arguments(path, {}, "read")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("compression", "encoding"),
        ("start-snapshot-id", "changesSince"),
        ("endSnapshotId", "snapshot"),
        ("stream-from-timestamp", "startingFrom"),
        ("readChangeData", "changesSince"),
        ("start-timestamp", "changesSince"),
        ("ignoreDeletes", "changeColumns"),
        ("skipChangeCommits", "changeColumns"),
        ("streaming-skip-delete-snapshots", "changeColumns"),
        ("maxFilesPerTrigger", "maxChunksPerTrigger"),
        ("maxBytesPerTrigger", "maxChunksPerTrigger"),
        ("optimizeWrite", "chunks"),
        ("dimensions", "dims"),
        ("autoCompact", "chunks"),
        ("target-file-size-bytes", "chunks"),
        ("maxRecordsPerFile", "chunks"),
    ],
)
def test_options_of_other_formats_lead_to_those_here(name, near):
    with raises(InvalidInputError, nearest=near):
        parse_read_options({"path": "r", name: "1"})


def test_a_list_of_known_settings_follows_a_full_stop():
    with pytest.raises(InvalidInputError, match=r"s3:// URLs\. Known: allow_http"):
        Location("s3://b/r", options={"qqqqqq": "1"})
