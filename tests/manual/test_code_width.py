"""Blocks of code of the manual and of notebooks fit on a screen of 1366 pixels, without scrolling.

The widths are those of the theme, in pixels: a rem has 20, a page two columns of links and margins.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.notebook_pages import NOTEBOOKS, page_of

ROOT = Path(__file__).parents[2]
STYLE = (ROOT / "docs" / "stylesheets" / "tables.css").read_text()
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "notebooks"]
REM = 20
SCREEN, SCROLL_BAR, LINKS, MARGINS, DETAILS = 1366, 15, 2 * 12.1 * REM, 2 * 1.2 * REM, 32
# Of the size of the font: the width of a character, and the padding of a block.
CHARACTER, PADDING = 0.602, 2 * 1.1765
BLOCK = re.compile(r"^( *)```\w.*?$(.*?)^ *```$", flags=re.DOTALL | re.MULTILINE)


def columns(is_nested):
    """Return how many characters fit in a line, also of a block inside of details."""
    widest = float(re.search(r"\.md-grid \{\s*max-width: ([\d.]+)rem", STYLE)[1]) * REM
    font = float(re.search(r"pre > code \{\s*font-size: ([\d.]+)rem", STYLE)[1]) * REM
    width = min(SCREEN - SCROLL_BAR, widest) - LINKS - MARGINS - (DETAILS if is_nested else 0)
    return int((width - PADDING * font) / (CHARACTER * font))


def too_long(text):
    for indent, block in BLOCK.findall(text):
        allowed = columns(bool(indent))
        yield from (line for line in block.splitlines() if len(line.removeprefix(indent)) > allowed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_pages_fit(page):
    assert list(too_long(page.read_text())) == []


@pytest.mark.parametrize("file", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda file: file.stem)
def test_lines_of_notebooks_fit(file):
    assert list(too_long(page_of(file)[0])) == []


def test_a_line_that_is_too_long_is_found():
    long, nested = "x" * (columns(False) + 1), "x" * (columns(True) + 1)
    assert list(too_long(f"```python\n{long}\n```\n")) == [long]
    assert list(too_long(f"    ```text\n    {nested}\n    ```\n")) == [f"    {nested}"]
    assert columns(False) > columns(True) >= 110
