"""Applies changes to a stored configuration, after checking them.

A library that cannot read the configuration cannot open the repository, so changes are checked
against the types and limits of existing libraries as well.

Rules of this file
------------------
1. Changes are a tree like the configuration itself. Maps are merged, None returns a setting to its
   default, and an unknown key is refused with the nearest known ones.
2. All other settings of the stored tree stay as they are, known or not.
3. ``manifest.splitting`` and single virtual chunk containers are replaced whole.

Spec: ``Repo.config``; ``config.yaml`` of version 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Final

from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.spec.config.config import RepositoryConfig, parse_config
from icechunk_format.spec.config.containers import CONTAINERS, changed_containers
from icechunk_format.spec.config.settings import SETTINGS, checked, refuse
from icechunk_format.spec.manifest.location_dictionary import LocationCompression
from icechunk_format.spec.splitting import SplittingRule, parse_rules, rules_tree
from icechunk_format.spec.splitting_patterns import check_pattern

_U64: Final = 2**64 - 1


def changed_tree(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration, ``RepositoryConfig.raw``, with changes applied."""
    new = _merged(tree, changes, SETTINGS, "")
    try:
        parse_config(new)
    except FormatError as error:
        raise InvalidInputError(
            f"the changed configuration is invalid: {error.message}", **error.facts
        ) from error
    return new


def changes_in(config: RepositoryConfig) -> dict[str, Any]:
    """Return the fields replaced in a configuration since it was read, as a tree of changes."""
    before = parse_config(config.raw)
    if config.previous_file != before.previous_file:
        raise InvalidInputError(
            f"previous_file was changed to {config.previous_file!r}, but it names a backup and "
            "must not be changed",
            setting="previous_file",
        )
    changes: dict[str, Any] = {}
    for name in ("inline_chunk_threshold_bytes", "num_updates_per_repo_info_file"):
        if getattr(config, name) != getattr(before, name):
            changes[name] = getattr(config, name)
    if config.compression_level != before.compression_level:
        changes["compression"] = {"level": config.compression_level}
    old = {item.url_prefix: item for item in before.virtual_chunk_containers}
    new = {item.url_prefix: item for item in config.virtual_chunk_containers}
    containers: dict[str, Any] = {prefix: None for prefix in old if prefix not in new}
    containers |= {prefix: item for prefix, item in new.items() if old.get(prefix) != item}
    if containers:
        changes[CONTAINERS] = containers
    manifest: dict[str, Any] = {}
    if config.splitting != before.splitting:
        manifest["splitting"] = config.splitting
    locations = {
        item.name: getattr(config.location_compression, item.name)
        for item in fields(LocationCompression)
        if getattr(config.location_compression, item.name)
        != getattr(before.location_compression, item.name)
    }
    if locations:
        manifest["virtual_chunk_location_compression"] = locations
    if manifest:
        changes["manifest"] = manifest
    return changes


def _merged(
    tree: Mapping[str, Any], changes: Any, known: Mapping[str, Any], prefix: str
) -> dict[str, Any]:
    """Return a map of the configuration with changes applied."""
    if not isinstance(changes, Mapping):
        where = prefix.rstrip(".") or "the changes of a configuration"
        refuse(f"a map of settings is expected, found {changes!r}", where)
    new = dict(tree)
    for key, value in changes.items():
        setting = f"{prefix}{key}"
        if key not in known:
            near = get_close_matches(str(key), known, n=3, cutoff=0.0)
            refuse(
                "this setting does not exist or cannot be changed; the nearest are "
                + ", ".join(f"{prefix}{name}" for name in near),
                setting,
                allowed=tuple(known),
            )
        if value is None:
            new.pop(key, None)
            continue
        stored = new.get(key)
        if setting == CONTAINERS:
            new[key] = changed_containers(stored if isinstance(stored, Mapping) else {}, value)
        elif setting == "manifest.splitting":
            new[key] = _splitting(value, setting)
        elif isinstance(known[key], dict):
            below = stored if isinstance(stored, Mapping) else {}
            new[key] = _merged(below, value, known[key], f"{setting}.")
        else:
            new[key] = checked(value, known[key], setting)
    return new


# -- splitting ------------------------------------------------------------------------------


def _splitting(value: Any, setting: str) -> dict[str, Any]:
    if isinstance(value, Mapping):
        unknown = [key for key in value if key != "split_sizes"]
        if unknown:
            refuse(f"only split_sizes is allowed in it, found {unknown[0]!r}", setting)
        rules: Any = value.get("split_sizes")
    else:
        rules = value
    if isinstance(rules, Sequence) and all(isinstance(rule, SplittingRule) for rule in rules):
        rules = rules_tree(rules)["split_sizes"]
    try:
        parsed = parse_rules(rules, "<changes>")
    except FormatError as error:
        refuse(f"{error.facts['problem']}; give SplittingRule values or their tree", setting)
    for rule in parsed:
        for dimension in rule.dimensions:
            axis = dimension.value
            if dimension.by == "axis" and (type(axis) is not int or not 0 <= axis <= _U64):
                refuse(f"an axis must be an integer from 0, found {axis!r}", setting, found=axis)
            if dimension.by == "dimension_name":
                _check_pattern(str(axis), setting)
        pending = [rule.condition]
        while pending:
            condition = pending.pop()
            pending += condition.parts
            if condition.kind not in ("any_array", "path_matches", "name_matches", "or", "and"):
                refuse(
                    f"{condition.kind!r} is not a condition on arrays; allowed are any_array, "
                    "path_matches, name_matches, or, and",
                    setting,
                )
            if condition.kind.endswith("_matches"):
                _check_pattern(condition.pattern, setting)
    return rules_tree(parsed)


def _check_pattern(pattern: str, setting: str) -> None:
    try:
        check_pattern(pattern)
    except UnsupportedError as error:
        refuse(error.message, setting, found=pattern)
