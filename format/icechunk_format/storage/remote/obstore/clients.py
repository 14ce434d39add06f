"""Makes obstore clients of S3, Google, Azure and plain HTTP from the options of a location.

Each bucket has two clients. The first sends each request exactly once, and ``request_policy.py``
retries it: a repeated conditional write can fail because its first attempt succeeded, and requests
that are throttled slow down together. The second retries by itself, for calls of many requests that
cannot be resumed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import obstore.store

from icechunk_format.errors import InvalidInputError
from icechunk_format.storage.address import Address
from icechunk_format.storage.options import SECRET_OPTIONS, StorageOptions
from icechunk_format.storage.remote.endpoint import (
    check_reachable,
    endpoint_url,
    host_part,
    server_url,
)
from icechunk_format.storage.remote.request_policy import DEFAULT_RETRIES, Backoff, safe_reason
from icechunk_format.storage.remote.s3_credentials import S3Settings, s3_settings

_MEMORY: Final = obstore.store.MemoryStore()
"""One space per process for ``memory://`` URLs with ``storage.client=obstore``."""

_CONNECT_TIMEOUT: Final = timedelta(seconds=5)
_STALL_TIMEOUT: Final = timedelta(seconds=60)
_DEFAULT_TIMEOUT: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ObstoreClients:
    """The two clients of a bucket, its server, and the secrets that errors must not show."""

    patient: Any
    once: Any
    server: str
    secrets: tuple[str, ...]


def make_clients(address: Address, options: StorageOptions) -> ObstoreClients:
    """Return the clients of a location, after connecting to the server once to check it."""
    secrets = [value for name, value in options.items() if name in SECRET_OPTIONS]
    region = None
    store: Any
    arguments: dict[str, Any]
    if address.kind == "s3":
        store, settings = obstore.store.S3Store, s3_settings(address, options)
        region = settings.region
        arguments = _s3_arguments(address, options, settings)
        if settings.credentials is not None:
            secrets += settings.credentials.secrets()
    elif address.kind == "gs":
        store, arguments = obstore.store.GCSStore, _gs_arguments(address, options)
    elif address.kind == "az":
        store, arguments = obstore.store.AzureStore, _az_arguments(address, options)
        secrets += [str(arguments[n]) for n in ("account_key", "sas_key") if n in arguments]
    elif address.kind == "http":
        store, arguments = obstore.store.HTTPStore, {"url": address.url}
    else:
        return ObstoreClients(patient=_MEMORY, once=_MEMORY, server="", secrets=())
    _check_sendable(address, {**arguments, **dict(enumerate(secrets))})
    server = server_url(address, options, region) or _az_server(arguments)
    if server is not None:
        check_reachable(server, root_url=address.shown_url)
    client_options = _client_options(options, server)
    backoff = Backoff(max_retries=options.number("max_retries", DEFAULT_RETRIES))
    patient: dict[str, Any] = {
        "max_retries": backoff.max_retries,
        "retry_timeout": timedelta(seconds=backoff.give_up_after),
        "backoff": {
            "init_backoff": timedelta(seconds=backoff.first_delay),
            "max_backoff": timedelta(seconds=backoff.max_delay),
            "base": 2,
        },
    }
    common = {**arguments, "client_options": client_options}
    try:
        both = [store(**common, retry_config=retry) for retry in (patient, {"max_retries": 0})]
    except Exception as error:
        reason = safe_reason(str(error), secrets)
        raise InvalidInputError(
            f"the options for {address.shown_url} cannot be used: {reason}"
        ) from None
    return ObstoreClients(
        patient=both[0],
        once=both[1],
        server=server or address.shown_url,
        secrets=tuple(secret for secret in secrets if secret),
    )


def _check_sendable(address: Address, arguments: Mapping[Any, Any]) -> None:
    """Raise InvalidInputError for strings that are invalid in headers, which break obstore."""
    for value in arguments.values():
        string = value if isinstance(value, str) and not value.lstrip().startswith("{") else ""
        if any(character < " " or character == "\x7f" for character in string):
            raise InvalidInputError(
                f"an option or a credential for {address.shown_url} has a line break or another "
                "control character; remove it, also at the end of files and environment variables"
            )


def _client_options(options: StorageOptions, server: str | None) -> dict[str, Any]:
    plain = server is not None and server.startswith("http://")
    result: dict[str, Any] = {
        "connect_timeout": _CONNECT_TIMEOUT,
        "read_timeout": _STALL_TIMEOUT,
        "timeout": timedelta(seconds=options.number("timeout", _DEFAULT_TIMEOUT)),
    }
    if plain or options.flag("allow_http"):
        result["allow_http"] = True
    if options.flag("allow_invalid_certificates"):
        result["allow_invalid_certificates"] = True
    return result


def _s3_arguments(
    address: Address, options: StorageOptions, settings: S3Settings
) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "bucket": address.bucket,
        "region": settings.region,
        "virtual_hosted_style_request": options.flag("virtual_hosted_style"),
    }
    if settings.endpoint is not None:
        arguments["endpoint"] = settings.endpoint
        if options.flag("virtual_hosted_style"):
            # obstore expects the bucket in the host name; users give only the server.
            scheme, _, host = settings.endpoint.partition("://")
            bucket = host_part(address.bucket, "virtual_hosted_style", address)
            if not host.startswith(f"{bucket}."):
                arguments["endpoint"] = f"{scheme}://{bucket}.{host}"
    if options.flag("requester_pays"):
        arguments["request_payer"] = True
    if settings.credentials is None:
        arguments["skip_signature"] = True
    else:
        arguments["credential_provider"] = settings.credentials.for_obstore
    return arguments


def _gs_arguments(address: Address, options: StorageOptions) -> dict[str, Any]:
    arguments: dict[str, Any] = {"bucket": address.bucket}
    endpoint = endpoint_url(address, options)
    if endpoint is not None:
        arguments["base_url"] = endpoint
    token = options.get("token")
    if options.flag("anon") or token == "anon":
        arguments["skip_signature"] = True
    elif token is not None and token.lstrip().startswith("{"):
        arguments["service_account_key"] = token
    elif token is not None and os.path.exists(os.path.expanduser(token)):
        arguments["service_account"] = os.path.expanduser(token)
    elif token is not None and token.endswith(".json"):
        raise InvalidInputError(
            "storage.token names a file that does not exist on this machine; give the path of the "
            "service account's key, or its JSON text",
            option="token",
        )
    elif token is not None:
        arguments["bearer_token"] = token
    return arguments


def _az_arguments(address: Address, options: StorageOptions) -> dict[str, Any]:
    given = dict(options)
    if "connection_string" in given:
        given = {**_connection_string(given.pop("connection_string")), **given}
    account = given.get("account_name") or address.account
    account = account or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    endpoint = endpoint_url(address, StorageOptions(given))
    if account is None and endpoint is None:
        raise InvalidInputError(
            f"{address.shown_url} names no storage account; set storage.account_name, "
            "AZURE_STORAGE_ACCOUNT_NAME, or write abfs://container@account.dfs.core.windows.net/",
            option="account_name",
        )
    arguments: dict[str, Any] = {"container_name": address.bucket}
    names = ("account_key", "tenant_id", "client_id", "client_secret")
    arguments |= {name: given[name] for name in names if name in given}
    if "sas_token" in given:
        arguments["sas_key"] = given["sas_token"]
    if endpoint is not None:
        arguments["endpoint"] = endpoint
    if account is not None:
        arguments["account_name"] = host_part(account, "account_name", address)
    if options.flag("anon"):
        arguments["skip_signature"] = True
    return arguments


def _connection_string(string: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in filter(None, string.split(";")):
        name, separator, value = part.partition("=")
        if not separator:
            raise InvalidInputError(
                "storage.connection_string is not a list of Name=value separated by ';'",
                option="connection_string",
            )
        parts[name.strip().lower()] = value.strip()
    names = {
        "accountname": "account_name",
        "accountkey": "account_key",
        "sharedaccesssignature": "sas_token",
        "blobendpoint": "endpoint_url",
    }
    result = {ours: parts[theirs] for theirs, ours in names.items() if theirs in parts}
    if "endpoint_url" not in result and "endpointsuffix" in parts and "account_name" in result:
        scheme = parts.get("defaultendpointsprotocol", "https")
        suffix = parts["endpointsuffix"]
        result["endpoint_url"] = f"{scheme}://{result['account_name']}.blob.{suffix}"
    return result


def _az_server(arguments: dict[str, Any]) -> str | None:
    if "endpoint" in arguments:
        return str(arguments["endpoint"])
    if "account_name" in arguments:
        return f"https://{arguments['account_name']}.blob.core.windows.net"
    return None
