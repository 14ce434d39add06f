"""Links of pages resolve, within the manual for its pages; paths and modules in backticks exist.

The site is built from `docs/` alone, so a link that leaves that folder is broken there.
"""

import pkgutil
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.core

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NOTEBOOKS = {DOCS / "notebooks" / f"{f.stem}.md" for f in (ROOT / "examples").rglob("*.ipynb")}
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(set(DOCS.rglob("*.md")) - NOTEBOOKS),
    ROOT / "format" / "README.md",
]
PATH = re.compile(r"[\w./-]+/[\w.-]+\.\w+|\w+\.py|[\w/]+/|(tests|docs|format)/[\w/]+")
# Objects of repositories and files of users and Spark, which pages name as well.
FOREIGN = re.compile(
    r"/.*|r/main/.*|(chunks|manifests|overwritten|snapshots|staging|transactions)/|(daemon|job)\.py"
)


def targets_of(page):
    """Return the links of a page to other pages and to headings."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if ":" not in target]


def test_most_pages_link_to_others():
    assert sum(bool(targets_of(page)) for page in PAGES) > len(PAGES) // 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of(page):
    for target in targets_of(page):
        file = (page.parent / target.partition("#")[0]).resolve() if target[0] != "#" else page
        assert file.exists() or file in NOTEBOOKS, f"{target} leads nowhere"
        if DOCS in page.parents:
            assert DOCS in file.parents, f"{target} leaves docs/: the site has no such page"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_and_modules_of(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    folders = [ROOT, ROOT / "format", ROOT / "format" / "icechunk_format"]
    for name in re.findall(r"`([\w./-]+)", text):
        if re.fullmatch(r"icechunk_(format|spark)(\.\w+)+", name):
            pkgutil.resolve_name(name)
        elif PATH.fullmatch(name) and not FOREIGN.fullmatch(name):
            found = [folder / name for folder in folders if (folder / name).exists()]
            assert found, f"`{name}` does not exist"
            # In "`a/b/c.py`, `d.py` there", the second path is relative to the first.
            folders[3:] = [found[0] if found[0].is_dir() else found[0].parent]
