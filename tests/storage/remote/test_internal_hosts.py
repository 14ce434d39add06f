"""Redirects do not lead to this machine, in whatever way its address is spelled or found."""

from __future__ import annotations

import http.server
import socket
import threading
from contextlib import contextmanager

import pytest
from helpers.raised import raises

from icechunk_format.errors import StorageError
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import ReadRequest
from icechunk_format.storage.remote import internal_hosts
from icechunk_format.storage.remote.internal_hosts import is_this_machine


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST.",
        "x.localhost",
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "::1",
        "::ffff:127.0.0.1",
        "0.0.0.0",
        "169.254.169.254",
        "fe80::1%25eth0",
        "fd00:ec2::254",
        "metadata.google.internal.",
        "fd20:ce::254",
        "fd00:c1::a9fe:a9fe",
        "192.0.0.192",
        "::ffff:192.0.0.192",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::7f00:1",
        "2002:7f00:1::",
    ],
)
def test_hosts_that_only_this_machine_reaches_are_known(host):
    assert is_this_machine(host)


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fd01::1", "fd01:0::1", True),
        ("fe80::1%eth0", "fe80::1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("64:ff9b::a00:1", "10.0.0.2", False),
    ],
)
def test_both_ends_of_a_connection_are_compared(one, other, is_same):
    assert internal_hosts._is_same_address(one, other) is is_same


@pytest.mark.parametrize("host", ["example.org", "10.0.0.1", "s3.eu-west-1.amazonaws.com", "minio"])
def test_other_hosts_are_not_taken_for_this_machine(host):
    assert not is_this_machine(host)


@contextmanager
def redirecting(header, target):
    """Run a server that redirects every request, and one that records the requests it gets.

    Yields the port of the first and the requests of the second; ``target`` has its port for {}.
    """
    reached = []

    class Reached(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            reached.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"leak")

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    class Redirecting(Reached):
        def do_GET(self):
            self.send_response(302)
            value = target.format(servers[0].server_port)
            self.send_header(header, value.encode().decode("latin-1"))
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

    servers = [http.server.ThreadingHTTPServer(("", 0), each) for each in (Reached, Redirecting)]
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield servers[1].server_port, reached
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


@pytest.mark.parametrize("header", ["Location", "URI", "location"])
@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.1:{}/x",
        "//127.0.0.1:{}/x",
        "http://１２７.０.０.１:{}/x",
        "http://127。0。0。1:{}/x",
        "http://2130706433:{}/x",
        "http://[::ffff:127.0.0.1]:{}/x",
        "http://public.example:{}/x",
    ],
)
def test_no_spelling_of_a_redirect_leads_to_this_machine(header, target, monkeypatch):
    """The last one is a public name whose address is this machine."""
    resolve = socket.getaddrinfo

    def resolved(host, *arguments, **named):
        host = {"public.example": "127.0.0.1"}.get(host, host)
        return resolve(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    with redirecting(header, target) as (port, reached):
        storage = open_storage(Location(f"http://127.0.0.1:{port}/data", client="fsspec"))
        for read in (
            storage.get,
            storage.head,
            lambda key: storage.get_many([ReadRequest(key=key)]),
        ):
            with pytest.raises(StorageError) as caught:
                read("x")
            assert "host" in caught.value.facts
        assert reached == []


def test_a_redirect_to_the_own_address_of_this_machine_is_not_followed(monkeypatch):
    """The address is not known as one of this machine, but both ends of the connection have it."""
    monkeypatch.setattr(internal_hosts, "is_this_machine", lambda host: False)
    with redirecting("Location", "http://127.0.0.1:{}/x") as (port, reached):
        storage = open_storage(Location(f"http://127.0.0.1:{port}/data", client="fsspec"))
        with raises(StorageError, host="127.0.0.1"):
            storage.get("x")
        assert reached == []


def test_a_redirect_to_another_address_is_followed(monkeypatch):
    monkeypatch.setattr(internal_hosts, "is_this_machine", lambda host: False)
    monkeypatch.setattr(internal_hosts, "_is_same_address", lambda one, other: False)
    with redirecting("Location", "http://localhost:{}/x") as (port, reached):
        storage = open_storage(Location(f"http://127.0.0.1:{port}/data", client="fsspec"))
        assert storage.get_many([ReadRequest(key="x")]) == [b"leak"]
        assert reached == ["/x"]
