"""Every notebook runs in an empty folder, and prints what the file shows.

``NOTEBOOKS_UPDATE=1`` writes what a run gives into the files. Ids and instants of commits differ
from run to run, and HTML and pictures are for eyes: texts are compared, with ids and instants
masked. What Spark logs is left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from helpers.notebook_pages import page_of
from helpers.spark.session import environment_of_a_program
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
# Each notebook starts a JVM of its own; `make nightly` runs the others.
BY_DAY = ("first_hour", "an_analysts_day", "archive_to_answers")
# Pages of the manual show the first picture of these.
PICTURES = {"arrays_from_arrays": "hot_years.png", "archive_to_answers": "el-nino.png"}
IDS = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{20}\b")
# Times of the data have neither a zone nor fractions of seconds.
INSTANTS = re.compile(r"\b20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+\S*| UTC|Z|\+00:00)")

pytestmark = pytest.mark.needs_reference


def run(notebook, folder):
    """Run all cells in a folder; keep of their outputs what is not of this machine."""
    environment = environment_of_a_program(
        PYTHONHASHSEED="0", PYTHONPATH=str(NOTEBOOKS[0].parents[1])
    )
    client = NotebookClient(
        notebook, timeout=300, record_timing=False, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=environment)
    for cell in notebook.cells:
        outputs = [kept for kept in cell.get("outputs", []) if kept.get("name") != "stderr"]
        if outputs:
            cell.outputs = [without_paths(output, folder) for output in outputs]


def without_paths(value, folder):
    """Show paths below the folder as if it lay in the user's home."""
    if isinstance(value, str):
        return value.replace(str(folder), "/home/you")
    if isinstance(value, list):
        return [without_paths(item, folder) for item in value]
    if isinstance(value, dict):
        return type(value)({key: without_paths(item, folder) for key, item in value.items()})
    return value


def texts(notebook):
    """Return for each cell what it prints and the text of its value."""
    found = {}
    for number, cell in enumerate(notebook.cells):
        parts = [
            output.get("text") or output.get("data", {}).get("text/plain", "")
            for output in cell.get("outputs", [])
            if output.output_type != "display_data"
        ]
        found[number] = INSTANTS.sub("INSTANT", IDS.sub("ID", "".join(parts)))
    return found


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=file.stem, marks=[] if file.stem in BY_DAY else [pytest.mark.nightly])
        for file in NOTEBOOKS
    ],
)
def test_notebook(file, tmp_path):
    shown = nbformat.read(file, as_version=4)
    ran = nbformat.read(file, as_version=4)
    run(ran, tmp_path)
    if os.environ.get("NOTEBOOKS_UPDATE"):
        nbformat.write(ran, file)
        if file.stem in PICTURES:
            _, drawn = page_of(file)
            (ROOT / "docs" / "pictures" / PICTURES[file.stem]).write_bytes(
                next(iter(drawn.values()))
            )
    else:
        assert texts(ran) == texts(shown)
