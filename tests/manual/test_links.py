"""Links between pages, to files and to pictures lead somewhere; those of the manual stay inside it.

The site is built from `docs/` alone, so a link that leaves that folder is broken there.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), ROOT / "format" / "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if ":" not in target]
    for target in targets:
        file = (page.parent / target.partition("#")[0]).resolve() if target[0] != "#" else page
        assert file.exists(), f"{target} leads nowhere"
        if DOCS in page.parents:
            assert DOCS in file.parents, f"{target} leaves docs/: the site has no such page"
