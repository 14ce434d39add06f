"""Opens fsspec file systems, and translates the options to those of each implementation.

Options of unknown kinds of URL are passed on as given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.storage.address import Address
from icechunk_format.storage.options import StorageOptions
from icechunk_format.storage.remote.failures import safe_reason
from icechunk_format.storage.remote.internal_hosts import guarded_client

_OURS: Final = ("concurrency", "max_gap_bytes", "max_retries", "single_writer")
_OBSTORE_ONLY: Final = ("timeout", "allow_http", "allow_invalid_certificates", "endpoint_url")


def open_file_system(
    address: Address, options: StorageOptions, secrets: Sequence[str]
) -> tuple[Any, str]:
    """Return a file system without a listings cache, and the path of the root in it."""
    # Imported here because it takes a quarter of a second, and most locations do not need it.
    import fsspec.core

    arguments = _arguments(address, options)
    url = f"file://{address.path}" if address.kind == "local" else address.url
    try:
        file_system, path = fsspec.core.url_to_fs(
            url, skip_instance_cache=address.kind != "memory", use_listings_cache=False, **arguments
        )
    except ImportError as error:
        raise UnsupportedError(
            f"{address.shown_url} needs a package that is not installed: "
            f"{safe_reason(str(error), secrets)}"
        ) from None
    except Exception as error:
        # File systems raise anything; the error must not show the value of an option.
        reason = safe_reason(f"{type(error).__name__}: {error}", secrets)
        raise UnsupportedError(
            f"fsspec cannot open {address.shown_url}: {reason}; check the URL and the options"
        ) from None
    return file_system, str(path)


def _arguments(address: Address, options: StorageOptions) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if name not in _OURS}
    if address.kind == "http":
        return {"get_client": guarded_client(address.url)}
    if address.kind == "gs":
        token = "anon" if options.flag("anon") else given.get("token")
        parsed: Any = token
        if token and token.lstrip().startswith("{"):
            try:
                parsed = json.loads(token)
            except ValueError:
                raise InvalidInputError(
                    "storage.token begins like JSON but is not; give the text of the service "
                    "account's key, or its path",
                    option="token",
                ) from None
        names = {"project": given.get("project"), "endpoint_url": given.get("endpoint_url")}
        return {name: value for name, value in {"token": parsed, **names}.items() if value}
    if address.kind == "az":
        if address.account is not None:
            given.setdefault("account_name", address.account)
        for name in _OBSTORE_ONLY:
            given.pop(name, None)
        return {**given, "anon": options.flag("anon")}
    if address.kind == "local":
        return {"auto_mkdir": True}
    return {name: _typed(name, value) for name, value in given.items()}


_NEVER_NUMBERS: Final = ("password", "passphrase", "secret", "token", "key", "user")


def _typed(name: str, value: str) -> Any:
    """Return an option for an unknown file system: JSON if it is JSON, else a string.

    Passwords and similar options are strings even if they consist of digits.
    """
    if any(word in name.lower() for word in _NEVER_NUMBERS):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
