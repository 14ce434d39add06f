"""Adds, replaces and removes virtual chunk containers in a stored configuration.

Libraries that parse configurations strictly cannot open a repository with a container that lacks a
field or has one of a wrong type, so exactly the fields that they know are written.

Rules of this file
------------------
1. A container is replaced whole; its keys beside name, prefix and store are kept.
2. No credential is stored: an option that looks like one is refused.

Spec: ``Repo.config``, ``virtual_chunk_containers``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Never

from icechunk_format.errors import FormatError, InvalidInputError
from icechunk_format.spec.config.config import VirtualChunkContainer, parse_config

CONTAINERS: Final = "virtual_chunk_containers"

_U32: Final = 2**32 - 1
# The fields that existing libraries know, with the values that they write for an empty store.
_S3_OPTIONS: Final[dict[str, Any]] = {
    "region": None,
    "endpoint_url": None,
    "anonymous": False,
    "allow_http": False,
    "force_path_style": False,
    "network_stream_timeout_seconds": 60,
    "requester_pays": False,
    "checksum_algorithm": None,
}
_CHECKSUMS: Final = ("crc32", "crc32c", "crc64_nvme", "sha1", "sha256")
_S3_KINDS: Final = ("s3", "s3_compatible", "tigris")
_TEXT_MAP_KINDS: Final = ("gcs", "azure", "http")
_STORE_KINDS: Final = (*_S3_KINDS, *_TEXT_MAP_KINDS, "local_file_system", "in_memory")
_SECRET_WORDS: Final = ("secret", "key", "token", "password", "credential", "sas", "authorization")


def refuse(problem: str, setting: str, **facts: Any) -> Never:
    """Raise InvalidInputError for the value that was given for a setting."""
    raise InvalidInputError(f"{setting}: {problem}", setting=setting, **facts)


def changed_containers(tree: Mapping[str, Any], changes: Any) -> dict[str, Any]:
    """Return the stored containers with some of them replaced, added, or removed by None.

    Parameters
    ----------
    tree
        ``virtual_chunk_containers`` as stored.
    changes
        A list of ``VirtualChunkContainer``; or a map from URL prefix to such a value, to its tree,
        or to None.

    Raises
    ------
    InvalidInputError
        A container is not one that existing libraries can read.
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
            refuse(f"two containers are called {name!r}; names are unique", CONTAINERS)
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
            refuse(f"a container has name, url_prefix and store, found {min(extra)!r}", setting)
    if found.url_prefix != prefix:
        refuse(f"its url_prefix {found.url_prefix!r} is another one", setting)
    if found.name is not None and (not found.name or "/" in found.name):
        refuse(f"{found.name!r} cannot be its name: names are not empty and hold no '/'", setting)
    return found


def _container_tree(container: VirtualChunkContainer, setting: str) -> dict[str, Any]:
    kind, options = container.store_kind, dict(container.store_options)
    store: Any
    if kind in _S3_KINDS:
        store = {kind: _s3_options(options, setting)}
    elif kind in _TEXT_MAP_KINDS:
        for name, value in options.items():
            if not isinstance(value, str):
                refuse(f"options of {kind} are texts, found {name!r}", setting)
            if any(word in name.lower() for word in _SECRET_WORDS):
                refuse(
                    f"{name!r} looks like a credential, and none is ever stored in a repository; "
                    "give it to the reader",
                    setting,
                )
        store = {kind: options}
    elif kind == "local_file_system":
        path = options.pop("path", None)
        if not isinstance(path, str) or options:
            refuse("local_file_system has one option, the text path", setting)
        store = {kind: path}
    elif kind == "in_memory" and not options:
        store = kind
    else:
        refuse(f"{kind!r} is no kind of store; there are {', '.join(_STORE_KINDS)}", setting)
    return {"name": container.name, "url_prefix": container.url_prefix, "store": store}


def _s3_options(options: Mapping[str, Any], setting: str) -> dict[str, Any]:
    for name, value in options.items():
        if name not in _S3_OPTIONS:
            refuse(
                f"{name!r} is no option of an S3 store that is stored; there are "
                + ", ".join(_S3_OPTIONS),
                setting,
            )
        default = _S3_OPTIONS[name]
        expected = str if default is None else type(default)
        is_unset = value is None and expected is not bool
        if not is_unset and type(value) is not expected:
            refuse(f"{name} is {expected.__name__}, found {value!r}", setting)
        if expected is int and not is_unset and not 0 <= value <= _U32:
            refuse(f"{name} is {value}, not between 0 and {_U32}", setting)
        if name == "checksum_algorithm" and not is_unset and value not in _CHECKSUMS:
            refuse(f"{name} is {value!r}, not one of {', '.join(_CHECKSUMS)}", setting)
    return {**_S3_OPTIONS, **options}
