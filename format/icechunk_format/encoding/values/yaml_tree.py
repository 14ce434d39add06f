"""Reads the YAML of ``config.yaml`` as a tree of JSON values.

Rules of this file
------------------
1. No tag constructs an object, aliases are refused, and plain words have the meaning of YAML 1.2
   (``no`` is a word, not false).
2. A tag ``!t`` becomes the map ``{t: value}``, or the word ``t`` if it has no value.
3. Only ``FormatError`` is raised.

Spec: ``config.yaml`` of version 1.
"""

from __future__ import annotations

import re
from typing import Any, Final, Never

import yaml

from icechunk_format.errors import FormatError

MAX_YAML_SIZE: Final = 256 * 1024


def decode_yaml(data: bytes, *, object_key: str) -> Any:
    """Return the tree; None for an empty file."""
    node = compose_yaml(data, object_key=object_key)
    try:
        return None if node is None else _ConfigLoader(b"").construct_document(node)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        bad_tree(f"not YAML of a configuration ({error})", object_key)


def compose_yaml(data: bytes, *, object_key: str) -> yaml.Node | None:
    """Return the nodes of a file with their tags and positions; None for an empty one."""
    if len(data) > MAX_YAML_SIZE:
        bad_tree(f"{len(data)} bytes of YAML, more than {MAX_YAML_SIZE}", object_key)
    try:
        # The loader below is a reduced SafeLoader.
        return yaml.compose(data, Loader=_ConfigLoader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        bad_tree(f"not YAML of a configuration ({error})", object_key)


def bad_tree(problem: str, object_key: str, setting: str | None = None) -> Never:
    """Raise FormatError for the tree of a stored configuration."""
    raise FormatError(
        f"{problem}; correct the repository's configuration",
        object_key=object_key,
        file_type="configuration",
        field=setting,
    )


class _ConfigLoader(yaml.SafeLoader):
    """Loader of the YAML that the reference writes: maps, lists, words, tags for enum values."""

    # The resolvers of YAML 1.1 (yes, no, dates, 1:30) are left out.
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        found = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.YAMLError("a key must be a word")
            found[str(key_node.value)] = self.construct_object(value_node)
        return found

    def construct_tagged(self, suffix: str, node: Any) -> Any:
        content: Any
        if isinstance(node, yaml.MappingNode):
            content = self.construct_mapping(node)
        elif isinstance(node, yaml.SequenceNode):
            content = [self.construct_object(item) for item in node.value]
        elif node.value == "" and node.style is None:
            return suffix
        else:
            # The tag hides the type of the word, so it is resolved again without the tag.
            is_plain = node.style is None
            tag = self.resolve(yaml.ScalarNode, node.value, (is_plain, False))  # type: ignore[no-untyped-call]
            plain = yaml.ScalarNode(tag, node.value, node.start_mark, node.end_mark, node.style)
            content = self.construct_object(plain)
        return {suffix: content}

    def construct_map(self, node: Any) -> dict[Any, Any]:
        return self.construct_mapping(node)

    def construct_integer(self, node: Any) -> int:
        return int(node.value)


for _tag, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?[0-9]+$", list("-+0123456789")),
    (
        "float",
        r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$",
        list("-+.0123456789"),
    ),
):
    _ConfigLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)
_ConfigLoader.add_multi_constructor("!", _ConfigLoader.construct_tagged)
_ConfigLoader.add_constructor("tag:yaml.org,2002:map", _ConfigLoader.construct_map)
_ConfigLoader.add_constructor("tag:yaml.org,2002:int", _ConfigLoader.construct_integer)
