"""Recognizes loopback, link-local and cloud-metadata hosts, and refuses redirects to them.

A repository or a redirecting server must never make a reader contact such a host.

Rules of this file
------------------
1. The host is checked as written before connecting, and the address of the peer before the request
   is sent, so no name or spelling bypasses the check.
2. The host and port of the URL that the user authorized are not checked.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

from icechunk_format.errors import StorageError

_LOCAL_NAMES: Final = ("localhost", "metadata.google.internal", "metadata")
# Metadata and host services of clouds outside the link-local ranges: AWS (IPv6), Azure, Alibaba.
_SERVICE_ADDRESSES: Final = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "168.63.129.16", "100.100.100.200"))
)


def is_this_machine(host: str) -> bool:
    """Return True if a host, as written, is a loopback, link-local or cloud-metadata host."""
    host = host.partition("%")[0].lower().rstrip(".")
    if host in _LOCAL_NAMES or host.endswith(".localhost"):
        return True
    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(host)
    except ValueError:
        try:
            # Resolvers also accept addresses such as 2130706433, 0x7f.1 and 127.1.
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
    """Return a factory of aiohttp sessions, for fsspec, that enforces the rules of this file."""

    async def make(**arguments: Any) -> Any:
        # Imported here because it is slow, and absent without fsspec's http extra.
        import aiohttp
        import yarl

        own = yarl.URL(root_url)

        def check(url: yarl.URL, host: str) -> None:
            if is_this_machine(host):
                raise StorageError(
                    f"{own.host} redirects to {url.host} ({host}), which is this machine or a "
                    "metadata service; it was not followed. Give the URL of the object itself",
                    host=url.host,
                )

        class Connector(aiohttp.TCPConnector):
            async def connect(self, req: Any, *arguments: Any, **named: Any) -> Any:
                # The target of a redirect as the client parsed it; it is not parsed a second time.
                url = req.url
                if (url.host, url.port) == (own.host, own.port):
                    return await super().connect(req, *arguments, **named)
                check(url, str(url.raw_host))
                connection = await super().connect(req, *arguments, **named)
                transport: Any = connection.transport
                try:
                    check(url, transport.get_extra_info("peername")[0])
                except StorageError:
                    connection.close()
                    raise
                return connection

        arguments.pop("loop", None)
        return aiohttp.ClientSession(connector=Connector(), **arguments)

    return make
