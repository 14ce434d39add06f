"""Marks of the tests, and one Spark session for a whole run."""

from __future__ import annotations

import os
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from helpers.examples import by_day
from helpers.spark import loaded_classes
from helpers.spark.session import running_spark

from icechunk_format.repository.state import turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession


# What an example takes says more of the machine, which may be busy, than of the code.
hypothesis.settings.register_profile(
    "any-machine",
    deadline=None,
    max_examples=by_day(25),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("any-machine")

# Tests stop a writer in the middle of a commit while others of this process commit.
turns.PATIENCE_S = 0.02


class WithoutReference(MetaPathFinder):
    """Skips the modules and tests that import the reference."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "icechunk":
            pytest.skip("needs the reference", allow_module_level=True)


def pytest_report_header(config: pytest.Config) -> str | None:
    if not config.getoption("--without-reference"):
        return None
    return "left out: tests/conformance, tests/peers, and what needs the reference"


# Folders whose tests need Java, a server, the reference wheel or more time than `make test` has.
# Long files come first, so that two processes that share the files of a run end together.
NEEDS_MORE = (
    *("cluster", "benchmarks", "s3", "spark", "manual", "torture"),
    *("cloud", "peers", "conformance"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--layer",
        choices=("fast", "core", "rest", "nightly", "all"),
        default="all",
        help="fast: tests that need no Java and no server; core: those of the others with the mark "
        "core; rest: the others without it; nightly: long ones",
    )
    parser.addoption(
        "--without-reference",
        action="store_true",
        # The reference needs Python 3.12; an older one knows other things.
        default=sys.version_info < (3, 12),
        help="skip the tests that compare with the reference library; always below Python 3.12",
    )


def folder_of(path: Path) -> str:
    """Return the folder below ``tests/`` in which a test lies."""
    return path.relative_to(Path(__file__).parent).parts[0]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    here = Path(__file__).parent
    # A folder that the command line names is collected whatever is said here, its files are not.
    oracles = {here / "conformance", here / "peers"}
    if config.getoption("--without-reference") and not oracles.isdisjoint(collection_path.parents):
        return True
    if collection_path.parent != here:
        return None
    layer, needs_more = config.getoption("--layer"), collection_path.name in NEEDS_MORE
    left_out = {"fast": needs_more, "core": not needs_more, "rest": not needs_more}
    return left_out.get(layer, False) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    layer = config.getoption("--layer")
    if layer in ("core", "rest"):
        items.sort(key=lambda item: (*NEEDS_MORE, folder_of(item.path)).index(folder_of(item.path)))
    if layer != "all":
        wanted = "rest" if layer == "fast" else layer
        kept, left_out = [], []
        for item in items:
            marks = (mark for mark in ("nightly", "core") if item.get_closest_marker(mark))
            (kept if next(marks, "rest") == wanted else left_out).append(item)
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
    for item in items:
        if config.getoption("--without-reference") and item.get_closest_marker("needs_reference"):
            item.add_marker(pytest.mark.skip(reason="needs the reference"))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--without-reference"):
        sys.meta_path.insert(0, WithoutReference())
    os.environ.setdefault("JDK_JAVA_OPTIONS", loaded_classes.java_options())
    config.addinivalue_line(
        "markers", "needs_reference: builds its repositories with the icechunk and zarr wheels"
    )


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with running_spark(tmp_path_factory.mktemp("warehouse")) as session:
        yield session


@pytest.fixture
def last_line() -> Callable[[Callable[[], object]], str]:
    """Run something that fails in Spark; return the line of the error that a user reads last."""
    from pyspark.errors import PySparkException

    from icechunk_format.errors import IcechunkError

    def of(action: Callable[[], object]) -> str:
        with pytest.raises((PySparkException, IcechunkError)) as caught:
            action()
        lines = [line.strip() for line in str(caught.value).splitlines() if line.strip()]
        # Spark adds "SQLSTATE: 38000" and, for tasks, the JVM's own stack.
        ours = [line for line in lines if line.startswith("icechunk_format.errors.")]
        if ours:
            after = lines[lines.index(ours[-1]) :]
            text = [line for line in after if not line.startswith(("SQLSTATE", "at ", "JVM"))]
            return text[-1]
        return [line for line in lines if not line.startswith("SQLSTATE")][-1]

    return of
