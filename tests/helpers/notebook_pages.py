"""Writes the notebooks of ``examples/notebooks/`` as pages of the manual, with their outputs.

``make docs`` runs it before it builds the site. The notebooks are stored with their outputs, which
the tests compare with those of a run.
"""

from __future__ import annotations

import base64
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import nbformat

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
NOTEBOOKS: Final = ROOT / "examples" / "notebooks"
PAGES: Final = ROOT / "docs" / "notebooks"
SOURCE: Final = "https://github.com/icechunk-spark/icechunk-spark/blob/main/examples/notebooks"
# What terminals colour, pages do not.
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


def page_of(file: Path) -> tuple[str, dict[str, bytes]]:
    """Return the text of a notebook's page, and its pictures by name."""
    pictures: dict[str, bytes] = {}
    parts: list[str] = []
    for cell in nbformat.read(file, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.source.strip():
            parts.append(fenced("python", cell.source))
            printed = "".join(output.get("text", "") for output in cell.get("outputs", []))
            parts += [fenced("text", printed)] if printed else []
            for output in cell.get("outputs", []):
                parts += shown(output, file.stem, pictures)
        if len(parts) == 1:
            parts.append(f"[This page is a notebook: {file.name}]({SOURCE}/{file.name})")
    return "\n\n".join(parts) + "\n", pictures


def shown(output: Any, name: str, pictures: dict[str, bytes]) -> Iterator[str]:
    """Yield the Markdown of one value; a picture is added to ``pictures``."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = f"{name}-{len(pictures) + 1}.png"
        pictures[picture] = base64.b64decode(data["image/png"])
        yield f"![Output of the cell above]({picture})"
    elif "class='ick'" in data.get("text/html", ""):
        # The displays of this project fit light and dark pages. A blank line would end the block.
        html = re.sub(r"<pre class='ick-text'>.*?</pre>", "", data["text/html"], flags=re.DOTALL)
        html = re.sub(r"\n\s*\n", "\n", html.strip())
        yield f'<div class="output">\n{html}\n</div>'
    elif "text/plain" in data:
        yield fenced("text", data["text/plain"])


def fenced(language: str, text: str) -> str:
    """Return a block of code."""
    return f"```{language}\n{COLOURS.sub('', text).rstrip()}\n```"


def write_pages(folder: Path = PAGES) -> None:
    """Write a page and the pictures of each notebook into an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in sorted(NOTEBOOKS.glob("*.ipynb")):
        text, pictures = page_of(file)
        (folder / f"{file.stem}.md").write_text(text, "utf-8")
        for name, content in pictures.items():
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    write_pages()
