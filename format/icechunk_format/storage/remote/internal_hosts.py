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
_SERVICE_ADDRESSES: Final = frozenset(
    map(
        ipaddress.ip_address,
        (
            # Metadata and host services outside of the link-local ranges: AWS and Google (IPv6),
            # Azure, Alibaba, Oracle.
            "fd00:ec2::254",
            "fd20:ce::254",
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "fd00:c1::a9fe:a9fe",
        ),
    )
)
# The last 32 bits of these addresses are an IPv4 address (NAT64, RFC 6052 and RFC 8215).
_NAT64: Final = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48")))


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
    address = _embedded(address)
    return (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address in _SERVICE_ADDRESSES
    )


def _embedded(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IPv4 address that an IPv6 address leads to, or the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if any(address in network for network in _NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _is_same_address(one: str, other: str) -> bool:
    """Return True if two addresses of a connection are those of one machine."""
    found = [_embedded(ipaddress.ip_address(each.partition("%")[0])) for each in (one, other)]
    return found[0] == found[1]


def guarded_client(root_url: str) -> Callable[..., Awaitable[Any]]:
    """Return a factory of aiohttp sessions, for fsspec, that enforces the rules of this file."""

    async def make(**arguments: Any) -> Any:
        # Imported here because it is slow, and absent without fsspec's http extra.
        import aiohttp
        import yarl

        own = yarl.URL(root_url)

        def check(url: yarl.URL, host: str, own_host: str | None = None) -> None:
            # A connection to this machine has the same address at both ends.
            if is_this_machine(host) or (own_host and _is_same_address(host, own_host)):
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
                    peer, local = map(transport.get_extra_info, ("peername", "sockname"))
                    check(url, peer[0], local[0])
                except StorageError:
                    connection.close()
                    raise
                return connection

        arguments.pop("loop", None)
        return aiohttp.ClientSession(connector=Connector(), **arguments)

    return make
