"""Writes changes into ``config.yaml``; unchanged sections keep their bytes.

Rules of this file
------------------
1. An unchanged top-level section keeps its text, comments included.
2. In a changed section, unchanged settings keep their tags, so that an enum value that only newer
   libraries define survives.
3. YAML writes enum values as tags: ``{"s3": {...}}`` of FlexBuffers is ``!s3``. Only the format's
   enums are written this way.

Spec: ``config.yaml`` of version 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import yaml

from icechunk_format.encoding.config.config import decode_yaml_config
from icechunk_format.encoding.object_keys import CONFIG_YAML
from icechunk_format.encoding.values.yaml_tree import compose_yaml
from icechunk_format.errors import FormatError

_MAP: Final = "tag:yaml.org,2002:map"
_LIST: Final = "tag:yaml.org,2002:seq"
_SCALARS: Final = {str: "str", int: "int", float: "float", bool: "bool", type(None): "null"}


def encode_yaml_config(old: bytes, tree: Mapping[str, Any]) -> bytes:
    """Return a ``config.yaml`` with new content, changed as little as possible.

    ``old`` is the stored file, empty bytes if it does not exist, and ``tree`` the changed
    ``RepositoryConfig.raw``. Raises FormatError if the old file cannot be read, or cannot be
    changed without loss.
    """
    root = compose_yaml(old, object_key=CONFIG_YAML)
    before = decode_yaml_config(old).raw
    if not isinstance(root, yaml.MappingNode):
        root = yaml.MappingNode(_MAP, [])
    try:
        text = old.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    keeps_text = (
        bool(root.value)
        and not root.flow_style
        and not text.startswith("\ufeff")
        and all(key.start_mark.column == 0 for key, _ in root.value)
    )
    starts = [key.start_mark.index for key, _ in root.value] if keeps_text else []
    parts = [text[: starts[0]]] if keeps_text else []
    seen: set[str] = set()
    for number, (key_node, value_node) in enumerate(root.value):
        key = str(key_node.value)
        seen.add(key)
        if key not in tree:
            continue
        if keeps_text and tree[key] == before[key]:
            stop = starts[number + 1] if number + 1 < len(starts) else len(text)
            parts.append(text[starts[number] : stop])
        else:
            parts.append(_section(key_node, _changed(value_node, before[key], tree[key], (key,))))
    parts += [_section(_node(k, ()), _node(tree[k], (k,))) for k in tree if k not in seen]
    new = "".join(part if part.endswith("\n") or not part else part + "\n" for part in parts)
    data = new.encode()
    if decode_yaml_config(data).raw != dict(tree):
        raise FormatError(
            "it cannot be changed without changing other settings; rewrite it as plain YAML "
            "with one setting per line",
            object_key=CONFIG_YAML,
            file_type="configuration",
        )
    return data


def _section(key: yaml.Node, value: yaml.Node) -> str:
    root = yaml.MappingNode(_MAP, [(key, value)], flow_style=False)
    text: str = yaml.serialize(root, Dumper=_ConfigDumper, allow_unicode=True, width=10_000)
    return text


def _changed(node: yaml.Node, old: Any, new: Any, path: tuple[str, ...]) -> yaml.Node:
    """Return the node of a new value, reusing the unchanged nodes below it."""
    if old == new:
        return node
    is_plain_map = isinstance(node, yaml.MappingNode) and node.tag == _MAP
    if not is_plain_map or not isinstance(old, dict) or not isinstance(new, dict):
        return _node(new, path)
    pairs = []
    seen = set()
    for key_node, value_node in node.value:
        key = str(key_node.value)
        seen.add(key)
        if key in new:
            value = _changed(value_node, old[key], new[key], (*path, key))
            pairs.append((key_node, value))
    pairs += [(_node(k, ()), _node(new[k], (*path, k))) for k in new if k not in seen]
    return yaml.MappingNode(_MAP, pairs, flow_style=False)


def _node(value: Any, path: tuple[str, ...]) -> yaml.Node:
    if path[:1] == ("virtual_chunk_containers",) and path[2:] == ("store",):
        return _enum(value)
    if path == ("manifest", "splitting", "split_sizes") and isinstance(value, list):
        return _sequence([_rule(rule) for rule in value])
    if isinstance(value, dict):
        pairs = [(_node(key, ()), _node(value[key], (*path, key))) for key in value]
        return yaml.MappingNode(_MAP, pairs, flow_style=False)
    if isinstance(value, list):
        return _sequence([_node(item, ()) for item in value])
    if isinstance(value, bool | None):
        text = {True: "true", False: "false", None: "null"}[value]
    else:
        text = str(value)
    return yaml.ScalarNode(f"tag:yaml.org,2002:{_SCALARS[type(value)]}", text)


def _sequence(items: list[yaml.Node]) -> yaml.Node:
    return yaml.SequenceNode(_LIST, items, flow_style=False)


def _rule(rule: Any) -> yaml.Node:
    condition, dimensions = rule
    items: list[yaml.Node] = []
    for item in dimensions:
        pairs = [
            (_node(key, ()), _enum(item[key]) if key == "condition" else _node(item[key], ()))
            for key in item
        ]
        items.append(yaml.MappingNode(_MAP, pairs, flow_style=False))
    return _sequence([_enum(condition), _sequence(items)])


def _enum(value: Any) -> yaml.Node:
    """Return the node of an enum value: a word, or a tag with content."""
    if not isinstance(value, dict):
        return _node(value, ())
    ((tag, content),) = value.items()
    if isinstance(content, list):
        # The parts of "or" and "and" are conditions.
        node = _sequence([_enum(item) for item in content])
    else:
        node = _node(content, ())
        if isinstance(content, str) and isinstance(node, yaml.ScalarNode):
            node.style = "'"
    node.tag = f"!{tag}"
    return node


class _ConfigDumper(yaml.SafeDumper):
    """Writes tagged words that are no text without quotes.

    ``!Axis 0`` is a number, ``!Axis '0'`` is a text.
    """

    def choose_scalar_style(self) -> str:
        event: Any = self.event
        chosen: str = super().choose_scalar_style()
        if not event.style and event.tag and event.tag.startswith("!"):
            meaning = self.resolve(yaml.ScalarNode, event.value, (True, False))  # type: ignore[no-untyped-call]
            if meaning != "tag:yaml.org,2002:str":
                return ""
        return chosen
