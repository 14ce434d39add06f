"""Recognises loopback, link-local and cloud-metadata hosts, and refuses redirects to them.

A repository or a redirecting server must never make a reader contact such a host.

Rules of this file
------------------
1. Only the text of a host is checked. Names that resolve to such an address are not found; that
   is the task of firewalls.
2. A redirect to such a host is followed only from that very host.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from icechunk_format.errors import StorageError

_LOCAL_NAMES: Final = ("localhost", "metadata.google.internal", "metadata")
# Metadata and host services of clouds outside the link-local ranges: AWS (IPv6), Azure, Alibaba.
_SERVICE_ADDRESSES: Final = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "168.63.129.16", "100.100.100.200"))
)


def is_this_machine(authority: str) -> bool:
    """Tell whether the text of a host names a loopback, link-local or cloud-metadata host."""
    host = authority.rpartition("@")[2].lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0].partition("%")[0]
    else:
        host = host.partition(":")[0]
    host = host.rstrip(".")
    if host in _LOCAL_NAMES or host.endswith(".localhost"):
        return True
    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(host)
    except ValueError:
        try:
            # Resolvers read 2130706433, 0x7f.1 and 127.1 as addresses too.
            address = ipaddress.IPv4Address(socket.inet_aton(host))
        except (OSError, UnicodeError):
            return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address in _SERVICE_ADDRESSES
    )


def guarded_client(root_url: str) -> Callable[..., Awaitable[Any]]:
    """Return a factory of aiohttp sessions, for fsspec, that keeps rule 2.

    Parameters
    ----------
    root_url
        The URL that the user gave; its own host may be of this machine.
    """
    own = urlsplit(root_url).netloc.rpartition("@")[2].lower()

    async def make(**arguments: Any) -> Any:
        # Imported here: slow, and missing without fsspec's http extra.
        import aiohttp

        async def check(_session: Any, _context: Any, redirect: Any) -> None:
            target = urljoin(str(redirect.url), redirect.response.headers.get("Location", ""))
            authority = urlsplit(target).netloc.rpartition("@")[2].lower()
            if authority != own and is_this_machine(authority):
                raise StorageError(
                    f"{own} redirects to {authority}, which is this machine or a metadata "
                    "service; it was not followed. Give the URL of the object itself"
                )

        traces = aiohttp.TraceConfig()
        traces.on_request_redirect.append(check)
        arguments.pop("loop", None)
        return aiohttp.ClientSession(trace_configs=[traces], **arguments)

    return make
