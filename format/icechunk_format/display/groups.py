"""Displays a dataset as xarray does, and all groups and arrays of a snapshot."""

from __future__ import annotations

from typing import Any, Final

from icechunk_format.display.arrays import (
    MOST_ARRAYS,
    ArrayFacts,
    array_lines,
    arrays_html,
    facts_of,
)
from icechunk_format.display.history import when
from icechunk_format.display.markup import (
    attribute_lines,
    attributes,
    cut,
    escaped,
    folded,
    more,
    more_lines,
    page,
    quiet,
    soft,
    title,
)
from icechunk_format.display.plain_text import counted, safe, safe_lines
from icechunk_format.errors import IcechunkError
from icechunk_format.zarr.zarr_json import parse_group_metadata

_MOST_GROUPS: Final = 50
_MOST_DIMS: Final = 20


# -- a dataset ------------------------------------------------------------------------------


def dataset_text(dataset: Any) -> str:
    """Return a dataset as text, without I/O."""
    coords, data, left_out = _variables(dataset)
    lines = [f"<Dataset {safe(cut(dataset.path, 100))} of {dataset.snapshot_id}>"]
    lines.append(f"Dimensions: {_dimensions(dataset)}")
    # Formatted together, so that coordinates and data variables are aligned.
    rows = array_lines([*coords, *data])
    for name, part in (
        ("Coordinates:", rows[: len(coords)]),
        ("Data variables:", rows[len(coords) :]),
    ):
        lines += [name, *part] if part else []
    lines += more_lines(left_out, "array", "    ")
    return "\n".join([*lines, *attribute_lines(dataset.attributes)])


def dataset_html(dataset: Any) -> str:
    """Return a dataset as HTML, without I/O."""
    coords, data, left_out = _variables(dataset)
    head = title(
        "Dataset", escaped(dataset.label, 300), f"at <code>{escaped(dataset.snapshot_id)}</code>"
    )
    parts = [f"<div>Dimensions {soft(escaped(_dimensions(dataset), 1000))}</div>"]
    for name, rows, rest in (("Coordinates", coords, 0), ("Data variables", data, left_out)):
        if rows:
            summary = f"{name} {soft(f'({len(rows) + rest:,})')}"
            parts.append(folded(summary, arrays_html([f for _, f in rows], rest), is_open=True))
    return page(dataset_text(dataset), head, *parts, attributes(dataset.attributes))


def _variables(
    dataset: Any,
) -> tuple[list[tuple[str, ArrayFacts]], list[tuple[str, ArrayFacts]], int]:
    """Return the first coordinates and data variables, and the number of others."""
    chosen = list(dataset.variables.values())[:MOST_ARRAYS]
    data = {variable.name for variable in dataset.data_variables}
    coords, others = [], []
    for variable in chosen:
        found = facts_of(variable.node, variable.name)
        if variable.name in data:
            others.append(("    ", found))
        else:
            coords.append(("  * " if variable.is_dimension_coordinate else "    ", found))
    return coords, others, len(dataset.variables) - len(chosen)


def _dimensions(dataset: Any) -> str:
    found: dict[str, int] = {}
    for variable in dataset.variables.values():
        for name, length in variable.dimensions:
            found.setdefault(name, length)
    shown = [
        f"{safe(cut(name, 40))} {length:,}" for name, length in list(found.items())[:_MOST_DIMS]
    ]
    shown += more_lines(len(found) - _MOST_DIMS, "dimension", "")
    return ", ".join(shown) or "none"


# -- a snapshot -----------------------------------------------------------------------------


def snapshot_text(snapshot: Any) -> str:
    """Return a snapshot with its groups and arrays as text, without I/O."""
    lines = [f"<Snapshot {snapshot.id}, {when(snapshot)}>"]
    lines += [f"    {safe(cut(line, 100))}" for line in safe_lines(snapshot.message[:400])[:1]]
    nodes = snapshot.nodes[:MOST_ARRAYS]
    rows = [("  ", facts_of(node, str(node.path))) for node in nodes if node.array is not None]
    arrays = dict(zip((one.name for _, one in rows), array_lines(rows), strict=True))
    lines += [
        arrays.get(str(node.path)) or f"  {safe(cut(str(node.path), 100))}  group" for node in nodes
    ]
    return "\n".join([*lines, *more_lines(len(snapshot.nodes) - len(nodes), "node")])


def snapshot_html(snapshot: Any) -> str:
    """Return a snapshot with its groups and arrays as HTML, without I/O."""
    nodes = snapshot.nodes[: MOST_ARRAYS + _MOST_GROUPS]
    groups: dict[str, list[Any]] = {}
    for node in nodes:
        path = str(node.path)
        parent = path if node.array is None else path.rpartition("/")[0] or "/"
        groups.setdefault(parent, [])
        if node.array is not None:
            groups[parent].append(node)
    parts = []
    for path, arrays in groups.items():
        found = [facts_of(node, str(node.path).rpartition("/")[2]) for node in arrays]
        summary = f"<b>{escaped(path)}</b> {soft(counted(len(found), 'array'))}"
        inside = arrays_html(found) + attributes(_group_attributes(snapshot, path))
        parts.append(folded(summary, inside, is_open=len(groups) <= 3) if inside else summary)
    head = title("Snapshot", f"<code>{escaped(snapshot.id)}</code>", when(snapshot))
    lines = safe_lines(snapshot.message[:2000])[:5]
    message = "".join(f"<div>{escaped(line)}</div>" for line in lines)
    rest = quiet(more(len(snapshot.nodes) - len(nodes), "node"))
    return page(snapshot_text(snapshot), head, message, *parts, rest)


def _group_attributes(snapshot: Any, path: str) -> dict[str, Any]:
    node = snapshot.node(path)
    if node is None:
        return {"missing group": "a node is below it, but the group is not stored"}
    try:
        return parse_group_metadata(node.user_data, node_path=path).attributes
    except IcechunkError as error:
        return {"zarr.json cannot be read": error.message}
