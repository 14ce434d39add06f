"""Applies changes to a stored configuration, after checking them.

Other implementations refuse to open a repository if they cannot read its configuration, so changes
are also checked against their types and limits.

Rules of this file
------------------
1. Changes are a tree like the configuration itself. Maps are merged, None returns a setting to its
   default, and an unknown key is refused with the nearest known ones.
2. All other settings of the stored tree are kept, including unknown ones.
3. ``manifest.splitting`` and a virtual chunk container are replaced as a whole, except keys of a
   container other than name, prefix and store. Only fields of existing libraries are written.
4. No credential is stored: an option that looks like one is refused.

Spec: ``Repo.config``; ``config.yaml`` of version 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from icechunk_format.encoding.config.config import (
    RepositoryConfig,
    VirtualChunkContainer,
    parse_config,
)
from icechunk_format.encoding.config.settings import SETTINGS, Setting, checked, refuse
from icechunk_format.encoding.manifest.location_dictionary import LocationCompression
from icechunk_format.encoding.splitting import SplittingRule, parse_rules, rules_tree
from icechunk_format.encoding.splitting_patterns import check_pattern
from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.names import by_likeness

CONTAINERS: Final = "virtual_chunk_containers"

_U32: Final = 2**32 - 1
_U64: Final = 2**64 - 1
# The options that existing libraries store, with the values that they write by default.
_S3_OPTIONS: Final = {
    "region": Setting(str),
    "endpoint_url": Setting(str),
    "anonymous": Setting(bool, False),
    "allow_http": Setting(bool, False),
    "force_path_style": Setting(bool, False),
    "network_stream_timeout_seconds": Setting(int, 60, 0, _U32),
    "requester_pays": Setting(bool, False),
    "checksum_algorithm": Setting(str, words=("crc32", "crc32c", "crc64_nvme", "sha1", "sha256")),
}
_S3_KINDS: Final = ("s3", "s3_compatible", "tigris")
_STRING_MAP_KINDS: Final = ("gcs", "azure", "http")
_STORE_KINDS: Final = (*_S3_KINDS, *_STRING_MAP_KINDS, "local_file_system", "in_memory")
_SECRET_WORDS: Final = ("secret", "key", "token", "password", "credential", "sas", "authorization")


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
    """Return the fields of a configuration that differ from ``raw``, as a tree of changes."""
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
            near = by_likeness(str(key), known, 3)
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
            new[key] = _changed_containers(stored if isinstance(stored, Mapping) else {}, value)
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


# -- containers -----------------------------------------------------------------------------


def _changed_containers(tree: Mapping[str, Any], changes: Any) -> dict[str, Any]:
    """Return stored containers with some replaced, added, or removed by None.

    ``changes`` is a list of ``VirtualChunkContainer``; or a map from URL prefix to such a value, to
    its tree, or to None.
    """
    if isinstance(changes, Mapping):
        items = list(changes.items())
    elif isinstance(changes, Sequence) and all(
        isinstance(item, VirtualChunkContainer) for item in changes
    ):
        items = [(item.url_prefix, item) for item in changes]
    else:
        refuse(
            f"a map from URL prefix to container, or a list of containers, is expected, found "
            f"{changes!r}",
            CONTAINERS,
        )
    new = dict(tree)
    for prefix, item in items:
        setting = f"{CONTAINERS}.{prefix}"
        if not isinstance(prefix, str) or "://" not in prefix or not prefix.endswith("/"):
            refuse("a URL prefix looks like 's3://bucket/folder/' and ends with '/'", setting)
        if item is None:
            new.pop(prefix, None)
            continue
        stored = new.get(prefix)
        new[prefix] = {
            **(stored if isinstance(stored, Mapping) else {}),
            **_container_tree(_container(prefix, item, setting), setting),
        }
    names = [item.get("name") for item in new.values() if isinstance(item, Mapping)]
    for name in names:
        if name is not None and names.count(name) > 1:
            refuse(f"two containers have the name {name!r}; names must be unique", CONTAINERS)
    return new


def _container(prefix: str, item: Any, setting: str) -> VirtualChunkContainer:
    if isinstance(item, VirtualChunkContainer):
        found = item
    else:
        try:
            found = parse_config({CONTAINERS: {prefix: item}}).virtual_chunk_containers[0]
        except FormatError as error:
            refuse(error.facts["problem"], setting)
        extra = set(item) - {"name", "url_prefix", "store"}
        if extra:
            refuse(
                f"a container has only name, url_prefix and store, found {min(extra)!r}", setting
            )
    if found.url_prefix != prefix:
        refuse(f"its url_prefix is {found.url_prefix!r}, but must equal this key", setting)
    if found.name is not None and (not found.name or "/" in found.name):
        refuse(f"its name {found.name!r} must not be empty or contain '/'", setting)
    return found


def _container_tree(container: VirtualChunkContainer, setting: str) -> dict[str, Any]:
    kind, options = container.store_kind, dict(container.store_options)
    store: Any
    if kind in _S3_KINDS:
        store = {kind: _s3_options(options, setting)}
    elif kind in _STRING_MAP_KINDS:
        for name, value in options.items():
            if not isinstance(value, str):
                refuse(f"options of {kind} must be strings; {name!r} is not", setting)
            if any(word in name.lower() for word in _SECRET_WORDS):
                refuse(
                    f"{name!r} looks like a credential, which a repository must not store; pass it "
                    "as an option of the reader",
                    setting,
                )
        store = {kind: options}
    elif kind == "local_file_system":
        path = options.pop("path", None)
        if not isinstance(path, str) or options:
            refuse("local_file_system has one option, the string path", setting)
        store = {kind: path}
    elif kind == "in_memory" and not options:
        store = kind
    else:
        refuse(f"{kind!r} is not a kind of store; allowed are {', '.join(_STORE_KINDS)}", setting)
    return {"name": container.name, "url_prefix": container.url_prefix, "store": store}


def _s3_options(options: Mapping[str, Any], setting: str) -> dict[str, Any]:
    for name, value in options.items():
        if name not in _S3_OPTIONS:
            refuse(
                f"{name!r} is not a stored option of an S3 store; allowed are "
                + ", ".join(_S3_OPTIONS),
                setting,
            )
        # Numbers and strings may be null, flags may not.
        if value is not None or _S3_OPTIONS[name].type is bool:
            checked(value, _S3_OPTIONS[name], f"{setting}.{name}")
    return {**{name: option.default for name, option in _S3_OPTIONS.items()}, **options}
