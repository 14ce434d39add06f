"""Every block of Python in the README and the manual runs, and prints what its page shows.

Blocks of a page share their names and run in order. A block of ``text`` behind one holds what it
prints; ``...`` stands for anything. ``MANUAL_UPDATE=1`` writes what was printed into the pages.
A block behind ``<!-- skip: next -->`` is not run: it needs a store or credentials.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import shutil
import sys
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    # Pages made of notebooks are tested as notebooks.
    if page.parent.name != "notebooks" and "```python" in page.read_text()
]
OUTPUT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PRINTED = "printed by the block before"

pytestmark = pytest.mark.needs_reference


class Running(PythonEvaluator):
    """Runs a block and keeps what it prints."""

    def __call__(self, example):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            super().__call__(example)
        example.namespace[PRINTED] = printed.getvalue()


def compare(example):
    """Compare a block of text with what the block of Python before it has printed."""
    printed = example.namespace.pop(PRINTED)
    if os.environ.get("MANUAL_UPDATE"):
        example.namespace.setdefault("updates", []).append((example.parsed, printed))
        return None
    if doctest.OutputChecker().check_output(example.parsed, printed, OUTPUT):
        return None
    return f"the page shows\n{example.parsed}\nand the block prints\n{printed}"


MANUAL = Sybil(
    parsers=[CodeBlockParser("python", Running()), CodeBlockParser("text", compare), SkipParser()]
)


@pytest.fixture(scope="session")
def repositories(tmp_path_factory, spark):
    """Write what `make demo` and the page "First hour" leave behind."""
    sys.path.insert(0, str(ROOT / "examples"))
    import demo

    folder = tmp_path_factory.mktemp("manual") / "demo-output"
    folder.mkdir()
    demo.write_repository(str(folder / "a1b-north-america"))
    with contextlib.chdir(folder.parent), contextlib.redirect_stdout(io.StringIO()):
        for example in list(MANUAL.parse(ROOT / "docs/start/first-hour.md").examples()):
            example.evaluate()
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page, repositories, tmp_path, monkeypatch):
    # Spark's own processes know nothing of this process's folder, so that paths are absolute.
    text = page.read_text().replace('"demo-output/', f'"{tmp_path}/demo-output/')
    (tmp_path / "page.md").write_text(text)
    document = MANUAL.parse(tmp_path / "page.md")
    examples = list(document.examples())
    if page.name != "first-hour.md":
        shutil.copytree(repositories, tmp_path / "demo-output")
    monkeypatch.chdir(tmp_path)
    # Tests share a session, and with it the names that they attach.
    monkeypatch.setattr("icechunk_spark.sql.catalog._attached", {})
    for example in examples:
        example.evaluate()
    updated = page.read_text()
    for shown, printed in document.namespace.get("updates", []):
        shown = f"```text\n{shown.rstrip()}\n```"
        updated = updated.replace(shown, f"```text\n{printed.rstrip()}\n```", 1)
    if os.environ.get("MANUAL_UPDATE"):
        page.write_text(updated)
