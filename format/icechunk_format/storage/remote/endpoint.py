"""Finds the endpoint of a location, and checks that its host can be reached.

A wrong endpoint must fail in seconds with an error that names it, while requests to a busy server
are retried for minutes. Clients do not distinguish the two, so each process connects once before
its first request.
"""

from __future__ import annotations

import os
import re
import socket
import time
from typing import Final
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from icechunk_format.errors import InvalidInputError, StorageError
from icechunk_format.storage.address import Address, ascii_authority
from icechunk_format.storage.options import StorageOptions

_CONNECT_SECONDS: Final = 4.0
_TRIES: Final = 3


def endpoint_url(address: Address, options: StorageOptions) -> str | None:
    """Return the endpoint given by the options or the environment; ``None`` for the default."""
    given = options.get("endpoint_url")
    if given is None and address.kind == "s3":
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        given = next((os.environ[name] for name in names if os.environ.get(name)), None)
    if given is None:
        return None
    string = given.rstrip("/")
    if "://" not in string:
        string = ("http://" if options.flag("allow_http") else "https://") + string
    try:
        parts = urlsplit(string)
        # Clients break on hosts that are not ASCII; a host with "@" is refused as well.
        parts = parts._replace(netloc=ascii_authority(parts.netloc))
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https"):
        raise InvalidInputError(
            "storage.endpoint_url (or AWS_ENDPOINT_URL) is not http(s)://host[:port] without user "
            "and password",
            option="endpoint_url",
        )
    if parts.scheme == "http" and not options.flag("allow_http", default=True):
        raise InvalidInputError(
            "storage.endpoint_url is an http:// URL, but storage.allow_http is false; use https://",
            option="endpoint_url",
        )
    return urlunsplit(parts)


def host_part(string: str, option: str, address: Address) -> str:
    """Return a string for use in a host name; refuse one that could change the host."""
    if re.fullmatch(r"[A-Za-z0-9._-]+", string) is None:
        raise InvalidInputError(
            f"storage.{option} of {address.shown_url} becomes part of a host name, so it can have "
            "ASCII letters, digits, '.', '_' and '-' only; correct it, also where the environment "
            "or a container of virtual chunks specifies it",
            option=option,
        )
    return string


def server_url(address: Address, options: StorageOptions, region: str | None = None) -> str | None:
    """Return the URL of the server; ``None`` if only the client determines it."""
    given = endpoint_url(address, options)
    if given is not None:
        return given
    if address.kind == "s3" and region is not None and "-iso" not in region:
        suffix = ".cn" if region.startswith("cn-") else ""
        return f"https://s3.{region}.amazonaws.com{suffix}"
    if address.kind == "gs":
        return "https://storage.googleapis.com"
    if address.kind == "http":
        return address.url
    return None


def check_reachable(url: str, *, root_url: str) -> None:
    """Connect to the host of ``url`` once; a wrong host raises an error within seconds.

    Hosts behind a proxy are not checked.
    """
    parts = urlsplit(url)
    host = parts.hostname
    if host is None or (parts.scheme in getproxies() and not proxy_bypass(host)):
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    problem = ""
    for retry in range(_TRIES):
        try:
            socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
        except socket.gaierror:
            problem = "the host name has no address"
            break
        except TimeoutError:
            problem = f"no answer within {_CONNECT_SECONDS:g} s"
        except OSError as error:
            problem = error.strerror or type(error).__name__
        else:
            return
        if retry < _TRIES - 1:
            time.sleep(0.2 * (retry + 1))
    raise StorageError(
        f"cannot reach {host}:{port} for {root_url}: {problem}; "
        "check storage.endpoint_url (or AWS_ENDPOINT_URL), storage.region and the network",
        host=host,
        port=port,
        reason=problem,
    )
