"""References of Kerchunk as others write them become the values they describe, or are refused."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers.archives.running import by_reference, virtualize

from icechunk_format.errors import InvalidInputError
from icechunk_format.repository import Repository
from icechunk_format.storage.options import VirtualAccess
from icechunk_format.tables import open_dataset

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytest.importorskip("virtualizarr")
pytestmark = [
    pytest.mark.needs_reference,
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated"),
]

VALUES = np.arange(1, 25, dtype="<i4").reshape(4, 6)


def references(folder: Path, path: str = "v", order: str = "C", separator: str = ".") -> Any:
    """Write the chunks of an array of 4 by 6 values, 2 by 4 in each; return references to them."""
    refs: dict[str, Any] = {
        ".zgroup": '{"zarr_format": 2}',
        f"{path}/.zattrs": '{"_ARRAY_DIMENSIONS": ["y", "x"]}',
        f"{path}/.zarray": json.dumps(
            {
                "zarr_format": 2, "shape": [4, 6], "chunks": [2, 4], "dtype": "<i4",
                "order": order, "fill_value": 0, "filters": None, "compressor": None,
                "dimension_separator": separator,
            }
        ),
    }  # fmt: skip
    file = folder / "chunks.bin"
    padded = np.pad(VALUES, ((0, 0), (0, 2)))
    with file.open("wb") as written:
        for i, j in itertools.product(range(2), range(2)):
            chunk = padded[2 * i : 2 * i + 2, 4 * j : 4 * j + 4]
            refs[f"{path}/{i}{separator}{j}"] = [str(file), written.tell(), chunk.nbytes]
            written.write(chunk.tobytes(order))  # type: ignore[arg-type]
    return {"version": 1, "refs": refs}


def read(folder: Path, document: Any, path: str = "v") -> Any:
    """Return the values of an array by our own reader, compared with those of the reference."""
    file, (group, _, name) = folder / "refs.json", path.rpartition("/")
    file.write_text(json.dumps(document))
    done = virtualize(str(file), folder / "repository", concat_dim="y")
    repository = Repository.open(str(folder / "repository"))
    access = VirtualAccess(done.places)
    dataset = open_dataset(repository, done.snapshot_id, group=group or None, access=access)
    found = dataset.read(name)
    other = by_reference(folder / "repository", group or None, mask_and_scale=False)[name]
    np.testing.assert_array_equal(found, other)
    return found


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("path", ["v", "a/b/v", "a/0"])
def test_orders_separators_and_groups(path, order, separator, tmp_path):
    found = read(tmp_path, references(tmp_path, path, order, separator), path)
    np.testing.assert_array_equal(found, VALUES)


def test_chunks_of_parquet_in_the_order_of_fortran(tmp_path):
    from kerchunk.df import refs_to_dataframe

    refs_to_dataframe(references(tmp_path, order="F"), str(tmp_path / "refs.parq"))
    done = virtualize(str(tmp_path / "refs.parq"), tmp_path / "repository", concat_dim="y")
    repository = Repository.open(str(tmp_path / "repository"))
    dataset = open_dataset(repository, done.snapshot_id, access=VirtualAccess(done.places))
    np.testing.assert_array_equal(dataset.read("v"), VALUES)


def test_version_0_and_templates_of_names(tmp_path):
    np.testing.assert_array_equal(read(tmp_path, references(tmp_path)["refs"]), VALUES)
    document = references(tmp_path)
    document["templates"] = {"u": str(tmp_path)}
    document["refs"]["v/0.0"][0] = "{{u}}/chunks.bin"
    file = tmp_path / "templates.json"
    file.write_text(json.dumps(document))
    virtualize(str(file), tmp_path / "other", concat_dim="y")
    np.testing.assert_array_equal(
        by_reference(tmp_path / "other", mask_and_scale=False)["v"], VALUES
    )


def _with(key: str, value: Any) -> Callable[[Any], None]:
    return lambda document: document["refs"].__setitem__(key, value)


def _zarray(old: str, new: str) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        document["refs"]["v/.zarray"] = document["refs"]["v/.zarray"].replace(old, new)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document.update(gen=[{"key": "v/{{i}}.0"}]), "its field 'gen' generates"),
        (lambda document: document.update(refs=[1]), "its field 'refs' is a list"),
        (lambda document: document.pop("refs"), "its field 'refs' is a NoneType"),
        (_with(".zarray", "{}"), "its root is an array"),
        (_with("v/.zarray", "{"), r"reference 'v/\.zarray' is no JSON"),
        (_with("v/.zarray", "[]"), r"reference 'v/\.zarray' is \[\], no JSON object"),
        (_with("v/.zattrs", "{}"), "array 'v' has the attribute _ARRAY_DIMENSIONS=None"),
        (_with("v/0.0", ["/a", 4]), r"chunk '0\.0' of array 'v' has the reference \['/a', 4\]"),
        (_with("v/0.0", ["/a", -4, 8]), r"chunk '0\.0' of array 'v' has the reference"),
        (_with("v/0.0", ["/a", "4", 8]), r"chunk '0\.0' of array 'v' has the reference"),
        (_with("v/0.0", None), r"chunk '0\.0' of array 'v' has the reference None"),
        (_with("v/2.0", ["/a", 4, 8]), r"a reference '2\.0', .* 2 numbers below \[2, 2\]"),
        (_with("v/0", ["/a", 4, 8]), r"a reference '0', .* 2 numbers"),
        (_with("v/a.b", ["/a", 4, 8]), r"a reference 'a\.b'"),
        (_zarray("[4, 6]", "[4000000000000, 6]"), "it has 4,000,000,000,000 chunks, and at most"),
        (_zarray("[4, 6]", "[4, -6]"), r"array 'v' has shape=\[4, -6\]"),
        (_zarray("[2, 4]", "[0, 4]"), r"array 'v' has chunks of length 0: \[0, 4\]"),
        (_zarray("[2, 4]", "[2]"), r"array 'v' has the shape \[4, 6\] and the chunks \[2\]"),
    ],
)  # fmt: skip
def test_malformed_references_are_refused_with_file_and_field(change, message, tmp_path):
    document = references(tmp_path)
    change(document)
    with pytest.raises(InvalidInputError, match=rf"(?s)refs\.json: (array 'v': )?.*{message}"):
        read(tmp_path, document)


def test_templates_of_expressions_are_refused(tmp_path):
    document = references(tmp_path)
    document["templates"] = {"u": "{{c}}"}
    document["refs"]["v/0.0"][0] = "{{u(c='a')}}"
    with pytest.raises(InvalidInputError, match=r"reference 'v/0\.0' has the template"):
        read(tmp_path, document)


def test_a_scalar_without_a_reference_is_refused(tmp_path):
    document = references(tmp_path)
    scalar = json.loads(document["refs"]["v/.zarray"]) | {"shape": [], "chunks": []}
    document["refs"]["s/.zarray"] = json.dumps(scalar)
    with pytest.raises(InvalidInputError, match="array 's': it is a scalar without a reference"):
        read(tmp_path, document)
