"""Merges storage options for virtual chunks; the user's options override the container's.

Containers are part of a repository, which is untrusted. A container cannot provide credentials,
read files or disable checks. Its endpoint is used only if the user also authorizes it (see
``virtual.py``).

=====================  ==========================  ================================================
container's store      options taken from it       others (timeouts, checksums, headers) are left
=====================  ==========================  ================================================
s3, s3_compatible      region, endpoint_url,       ``anonymous`` gives way to credentials that the
                       anonymous,                  user gives
                       force_path_style,
                       requester_pays
tigris                 the same                    endpoint https://t3.storage.dev by default
gcs                    skip_signature, base_url    written with or without ``google_*``
azure                  account, skip_signature,    written with or without ``azure_storage_*``,
                       endpoint                    ``azure_*``
http,                  nothing
local_file_system
=====================  ==========================  ================================================

Specification: "Virtual chunk containers".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.storage.location import Location
from icechunk_format.storage.options import (
    KNOWN_OPTIONS,
    SECRET_OPTIONS,
    StorageOptions,
    parse_options,
    relevant_options,
)

if TYPE_CHECKING:
    from icechunk_format.spec.config.config import VirtualChunkContainer

TIGRIS_ENDPOINT: Final = "https://t3.storage.dev"

_S3_WORDS: Final = {
    "region": "region",
    "endpoint_url": "endpoint_url",
    "anonymous": "anon",
    "force_path_style": "force_path_style",
    "requester_pays": "requester_pays",
}
_WORDS: Final[dict[str, dict[str, str]]] = {
    "s3": _S3_WORDS,
    "s3_compatible": _S3_WORDS,
    "tigris": _S3_WORDS,
    "gcs": {
        "skip_signature": "anon",
        "google_skip_signature": "anon",
        "base_url": "endpoint_url",
        "google_base_url": "endpoint_url",
    },
    "azure": {
        "account": "account_name",
        "account_name": "account_name",
        "azure_storage_account_name": "account_name",
        "skip_signature": "anon",
        "azure_skip_signature": "anon",
        "endpoint": "endpoint_url",
        "azure_endpoint": "endpoint_url",
        "azure_storage_endpoint": "endpoint_url",
    },
}
_CREDENTIALS: Final = SECRET_OPTIONS | {"profile", "client_id"}


def container_storage_options(
    kind: str, container: VirtualChunkContainer | None, user_options: Mapping[str, str]
) -> tuple[StorageOptions, str | None]:
    """Return the options for the storage of a virtual chunk, and the container's endpoint in them.

    ``kind`` is a key of ``KNOWN_OPTIONS``. The endpoint is None if the user gave one.
    """
    own = parse_options(kind, relevant_options(kind, user_options))
    stated = {} if container is None else _stated(container)
    theirs = dict(parse_options(kind, relevant_options(kind, stated)))
    if _CREDENTIALS & own.keys() or "anon" in own:
        theirs.pop("anon", None)
    merged = StorageOptions(theirs | dict(own))
    endpoint = None if "endpoint_url" in own else merged.get("endpoint_url")
    return merged, endpoint


def check_virtual_options(options: Mapping[str, str], prefixes: Iterable[str]) -> None:
    """Raise InvalidInputError for a virtual storage option that no kind of storage has.

    If a prefix is opened by fsspec, its options are unknown, and none is refused.
    """
    if any(Location(prefix).address.kind == "other" for prefix in prefixes):
        return
    kinds = [kind for kind in KNOWN_OPTIONS if kind != "other"]
    for name, value in options.items():
        if not any(relevant_options(kind, {name: value}) for kind in kinds):
            parse_options("s3", {name: value})


def _stated(container: VirtualChunkContainer) -> dict[str, str]:
    words = _WORDS.get(container.store_kind, {})
    stated: dict[str, str] = {}
    for name, value in container.store_options.items():
        word = words.get(name.lower())
        if word is not None and (text := _text(value)) is not None:
            stated.setdefault(word, text)
    if container.store_kind == "tigris":
        stated.setdefault("endpoint_url", TIGRIS_ENDPOINT)
    if "endpoint_url" not in stated and stated.get("force_path_style") == "false":
        # A container's default for AWS; the user's endpoint may not support buckets in host names.
        del stated["force_path_style"]
    return stated


def _text(value: Any) -> str | None:
    """Return a stored string or boolean as the value of an option; None for other values."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) and value else None
