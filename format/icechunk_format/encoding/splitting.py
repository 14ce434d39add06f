"""Parses the rules that split chunk refs over manifests, and applies them to an array.

Rules of this file
------------------
1. Rules are tried in order, and every rule whose condition matches the array's path applies. An
   axis takes its size from the first matching dimension rule.
2. Axes that no rule matches are not split. With a size of n, the manifests along an axis cover the
   chunks [k·n, (k+1)·n).
3. Patterns are those of Rust's ``regex`` and may match anywhere in a path. A pattern that Python
   may interpret differently raises an error if a result depends on it (`splitting_patterns`).
4. A condition of an unknown kind is kept. It raises an error only if a result depends on it.

Spec: ``manifest.splitting`` of the repository configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Never

from icechunk_format.encoding.splitting_patterns import contains
from icechunk_format.encoding.values.yaml_tree import bad_tree
from icechunk_format.errors import UnsupportedError

MAX_SPLIT: Final = 2**32 - 1
_MAX_DEPTH: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayCondition:
    """A condition on an array's path.

    ``kind`` is ``any_array``; ``path_matches`` or ``name_matches`` with a ``pattern``; ``or`` or
    ``and`` with ``parts``; or the name of an unknown kind.
    """

    kind: str
    pattern: str = ""
    parts: tuple[ArrayCondition, ...] = ()

    def holds(self, node_path: str) -> bool:
        """Return True if the array at this path meets the condition."""
        if self.kind == "any_array":
            return True
        if self.kind == "path_matches":
            return contains(self.pattern, node_path)
        if self.kind == "name_matches":
            return contains(self.pattern, node_path.rpartition("/")[2])
        if self.kind == "or":
            return any(part.holds(node_path) for part in self.parts)
        if self.kind == "and":
            return all(part.holds(node_path) for part in self.parts)
        raise UnsupportedError(
            f"the repository splits manifests by the unknown condition {self.kind!r}; upgrade "
            "icechunk-spark to write to this repository",
            found=self.kind,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionRule:
    """The number of chunks along an axis in one manifest.

    ``axis`` and ``dimension_name`` compare ``value``; ``any`` matches every axis.
    """

    by: Literal["axis", "dimension_name", "any"]
    value: int | str = ""
    num_chunks: int

    def holds(self, axis: int, name: str | None) -> bool:
        """Return True if the rule matches an axis."""
        if self.by == "axis":
            return axis == self.value
        if self.by == "dimension_name":
            return name is not None and contains(str(self.value), name)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class SplittingRule:
    """A condition that selects arrays, and the split of their axes."""

    condition: ArrayCondition
    dimensions: tuple[DimensionRule, ...]


NO_SPLITTING: Final = (
    SplittingRule(
        condition=ArrayCondition(kind="any_array"),
        dimensions=(DimensionRule(by="any", num_chunks=MAX_SPLIT),),
    ),
)


def split_cells(
    rules: Sequence[SplittingRule],
    node_path: str,
    dimension_names: Sequence[str | None] | None,
    num_chunks: Sequence[int],
) -> tuple[int, ...]:
    """Return the number of chunks along each axis in one manifest."""
    names = dimension_names or [None] * len(num_chunks)
    sizes: dict[int, int] = {}
    for rule in rules:
        if len(sizes) == len(num_chunks):
            break
        if not rule.condition.holds(node_path):
            continue
        for axis, name in enumerate(names):
            size = next((d.num_chunks for d in rule.dimensions if d.holds(axis, name)), None)
            if size is not None:
                sizes.setdefault(axis, size)
    return tuple(
        max(1, min(sizes.get(axis, MAX_SPLIT), count)) for axis, count in enumerate(num_chunks)
    )


def parse_rules(tree: Any, object_key: str) -> tuple[SplittingRule, ...]:
    """Read the value of ``split_sizes``."""
    return tuple(
        SplittingRule(
            condition=_condition(condition, object_key, 0),
            dimensions=tuple(
                _dimension(item, object_key) for item in _list(dimensions, object_key)
            ),
        )
        for condition, dimensions in (_pair(item, object_key) for item in _list(tree, object_key))
    )


def rules_tree(rules: Sequence[SplittingRule]) -> dict[str, Any]:
    """Return rules as stored in the configuration: a map with ``split_sizes``."""
    return {
        "split_sizes": [
            [
                _condition_tree(rule.condition),
                [
                    {"condition": _dimension_tree(item), "num_chunks": item.num_chunks}
                    for item in rule.dimensions
                ],
            ]
            for rule in rules
        ]
    }


def _condition_tree(condition: ArrayCondition) -> Any:
    if condition.kind in ("or", "and"):
        return {condition.kind: [_condition_tree(part) for part in condition.parts]}
    if condition.kind in ("path_matches", "name_matches"):
        return {condition.kind: {"regex": condition.pattern}}
    return condition.kind


def _dimension_tree(rule: DimensionRule) -> Any:
    if rule.by == "axis":
        return {"Axis": rule.value}
    return "Any" if rule.by == "any" else {"DimensionName": rule.value}


def _fail(problem: str, object_key: str) -> Never:
    bad_tree(problem, object_key, "manifest.splitting.split_sizes")


def _list(tree: Any, object_key: str) -> list[Any]:
    if not isinstance(tree, list):
        _fail(f"a list is expected, found {type(tree).__name__}", object_key)
    return tree


def _pair(tree: Any, object_key: str) -> tuple[Any, Any]:
    items = _list(tree, object_key)
    if len(items) != 2:
        _fail(
            f"a rule is a condition and a list of dimensions, found {len(items)} items", object_key
        )
    return items[0], items[1]


def _tagged(tree: Any, object_key: str) -> tuple[str, Any]:
    """Read an enum value: a bare name, or a name with content."""
    if isinstance(tree, str):
        return tree, None
    if isinstance(tree, dict) and len(tree) == 1:
        ((tag, content),) = tree.items()
        return tag, content
    _fail(f"a condition is a name or a map with one key, found {tree!r}", object_key)


def _condition(tree: Any, object_key: str, depth: int) -> ArrayCondition:
    if depth > _MAX_DEPTH:
        _fail(f"conditions are nested deeper than {_MAX_DEPTH}", object_key)
    kind, content = _tagged(tree, object_key)
    if kind in ("or", "and"):
        parts = _list(content, object_key)
        return ArrayCondition(
            kind=kind, parts=tuple(_condition(part, object_key, depth + 1) for part in parts)
        )
    if kind in ("path_matches", "name_matches"):
        pattern = content.get("regex") if isinstance(content, dict) else None
        if not isinstance(pattern, str):
            _fail(f"{kind} needs a string 'regex'", object_key)
        return ArrayCondition(kind=kind, pattern=pattern)
    return ArrayCondition(kind=kind)


def _dimension(tree: Any, object_key: str) -> DimensionRule:
    if not isinstance(tree, dict) or "condition" not in tree:
        _fail(f"a dimension rule has 'condition' and 'num_chunks', found {tree!r}", object_key)
    count = tree.get("num_chunks")
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_SPLIT:
        _fail(f"num_chunks is {count!r}; 1 to {MAX_SPLIT} is allowed", object_key)
    kind, content = _tagged(tree["condition"], object_key)
    if kind == "Any":
        return DimensionRule(by="any", num_chunks=count)
    if kind == "Axis" and isinstance(content, int):
        return DimensionRule(by="axis", value=content, num_chunks=count)
    if kind == "DimensionName" and isinstance(content, str):
        return DimensionRule(by="dimension_name", value=content, num_chunks=count)
    _fail(f"a dimension is Any, Axis or DimensionName, found {tree['condition']!r}", object_key)
