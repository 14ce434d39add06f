"""Adds, replaces and removes virtual chunk containers in a stored configuration.

Libraries with strict parsers cannot open a repository with a container that lacks a field or has
one of a wrong type, so exactly their fields are written.

Rules of this file
------------------
1. A container is replaced whole; keys other than name, prefix and store are kept.
2. No credential is stored: an option that looks like one is refused.

Spec: ``Repo.config``, ``virtual_chunk_containers``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from icechunk_format.errors import FormatError
from icechunk_format.spec.config.config import VirtualChunkContainer, parse_config
from icechunk_format.spec.config.settings import Setting, checked, refuse

CONTAINERS: Final = "virtual_chunk_containers"

_U32: Final = 2**32 - 1
# The fields of existing libraries, with the values that they write for an empty store.
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


def changed_containers(tree: Mapping[str, Any], changes: Any) -> dict[str, Any]:
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
        refuse(f"its url_prefix is {found.url_prefix!r}", setting)
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
                    f"{name!r} looks like a credential, which a repository must not store; give it "
                    "to the reader",
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
