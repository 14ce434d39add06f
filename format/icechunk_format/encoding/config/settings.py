"""Declares the settings of a repository, and checks their values as existing libraries do.

Spec: ``Repo.config``; the defaults are those of the reference implementation.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Never

from icechunk_format.errors import InvalidInputError

_U16: Final = 2**16 - 1
_U32: Final = 2**32 - 1
_U64: Final = 2**64 - 1


class Setting(NamedTuple):
    """A setting: its type, its default (None for null), limits of a number, allowed words."""

    type: type
    default: Any = None
    low: int = 0
    high: int = _U64
    words: tuple[str, ...] = ()


def refuse(problem: str, setting: str, **facts: Any) -> Never:
    """Raise InvalidInputError for the value of a setting."""
    raise InvalidInputError(f"{setting}: {problem}", setting=setting, **facts)


def checked(value: Any, allowed: Setting, setting: str) -> Any:
    """Return a value, or raise InvalidInputError if the setting does not allow it."""
    # True is an int in Python, but not a number here.
    if type(value) is not allowed.type:
        refuse(f"{allowed.type.__name__} is expected, found {value!r}", setting, found=value)
    if isinstance(value, int) and allowed.type is int and not allowed.low <= value <= allowed.high:
        refuse(
            f"{value} is not between {allowed.low} and {allowed.high}",
            setting,
            found=value,
            allowed=(allowed.low, allowed.high),
        )
    if allowed.words and value not in allowed.words:
        refuse(f"{value!r} is not one of {', '.join(allowed.words)}", setting, found=value)
    return value


def _retries(tries: int, first: int, longest: int) -> dict[str, Any]:
    return {
        "max_tries": Setting(int, tries, 1, _U16),
        "initial_backoff_ms": Setting(int, first, 0, _U32),
        "max_backoff_ms": Setting(int, longest, 0, _U32),
    }


SETTINGS: Final[dict[str, Any]] = {
    "inline_chunk_threshold_bytes": Setting(int, 512, 0, _U16),
    "get_partial_values_concurrency": Setting(int, 10, 1, _U16),
    "compression": {
        "algorithm": Setting(str, "zstd", words=("zstd",)),
        "level": Setting(int, 3, 0, 22),
    },
    "max_concurrent_requests": Setting(int, 256, 1, _U16),
    "max_concurrent_decodes": Setting(int, None, 1, _U16),
    "caching": {
        "num_snapshot_nodes": Setting(int, 500_000),
        "num_chunk_refs": Setting(int, 15_000_000),
        "num_transaction_changes": Setting(int, 0),
        "num_bytes_attributes": Setting(int, 0),
        "num_bytes_chunks": Setting(int, 0),
    },
    "storage": {
        "concurrency": {
            "max_concurrent_requests_for_object": Setting(int, 18, 1, _U16),
            "ideal_concurrent_request_size": Setting(int, 12 * 1024 * 1024, 1),
        },
        "retries": _retries(10, 100, 180_000),
        "timeouts": {
            "connect_timeout_ms": Setting(int, None, 0, _U32),
            "read_timeout_ms": Setting(int, None, 0, _U32),
            "operation_timeout_ms": Setting(int, None, 0, _U32),
            "operation_attempt_timeout_ms": Setting(int, None, 0, _U32),
        },
        "unsafe_use_conditional_update": Setting(bool, True),
        "unsafe_use_conditional_create": Setting(bool, True),
        "unsafe_use_metadata": Setting(bool, True),
        "storage_class": Setting(str),
        "metadata_storage_class": Setting(str),
        "chunks_storage_class": Setting(str),
        "minimum_size_for_multipart_upload": Setting(int, 100 * 1024 * 1024),
    },
    "virtual_chunk_containers": {},
    "manifest": {
        "preload": {
            "max_total_refs": Setting(int, 10_000, 0, _U32),
            "max_arrays_to_scan": Setting(int, 50, 0, _U32),
        },
        "splitting": Setting(dict),
        "virtual_chunk_location_compression": {
            "min_num_chunks": Setting(int, 1000, 0, _U16),
            "dictionary_max_training_samples": Setting(int, 100, 0, _U16),
            "dictionary_max_size_bytes": Setting(int, 2048, 0, 2**20),
            "compression_level": Setting(int, 3, 1, 22),
        },
        "max_concurrent_manifest_fetches_during_commit": Setting(int, 1, 1, _U16),
    },
    "repo_update_retries": {"default": _retries(100, 50, 30_000)},
    "num_updates_per_repo_info_file": Setting(int, 1000, 1, _U16),
}
"""Every setting that this library can change, as a tree like the configuration itself."""


def _defaults(settings: dict[str, Any]) -> dict[str, Any]:
    found = {
        name: _defaults(one) if isinstance(one, dict) else one.default
        for name, one in settings.items()
    }
    return {name: default for name, default in found.items() if default is not None}


DEFAULTS: Final = _defaults(SETTINGS)
"""The default of every setting that has one."""
