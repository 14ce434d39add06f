"""No secret reaches a host that only a repository names: endpoints x credentials x authorizations.

Two servers record every request. The repository names the stranger's, in the words of each store;
the user has credentials and may name an endpoint, or the stranger's.
"""

from __future__ import annotations

import contextlib
import http.server
import threading

import pytest

from icechunk_format.encoding.config.config import VirtualChunkContainer
from icechunk_format.errors import IcechunkError, UnauthorizedVirtualChunkError
from icechunk_format.repository.chunks import VirtualResolver
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import ReadRequest

SECRETS = {
    "s3": {"key": "canary-id", "secret": "canary-secret", "token": "canary-token"},
    "gs": {"token": "canary-token"},
    "az": {"account_name": "lab", "sas_token": "sv=2019&sig=canary-token"},
}
ENVIRONMENT = {
    "s3": {
        "AWS_ACCESS_KEY_ID": "canary-id",
        "AWS_SECRET_ACCESS_KEY": "canary-secret",
        "AWS_SESSION_TOKEN": "canary-token",
    },
    "gs": {"GOOGLE_BEARER_TOKEN": "canary-token"},
    "az": {
        "AZURE_STORAGE_ACCOUNT_NAME": "lab",
        "AZURE_STORAGE_SAS_KEY": "sv=2019&sig=canary-token",
    },
}
STORES = {
    "s3": ("s3_compatible", "endpoint_url"),
    "gs": ("gcs", "google_base_url"),
    "az": ("azure", "azure_endpoint"),
}


@contextlib.contextmanager
def recording_server():
    """Run a server that holds four bytes under every key; yield its URL and what it was sent."""
    sent = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            sent.append(f"{self.path}\n{self.headers}")
            self.send_response(206)
            for name, value in {
                "Content-Length": "4",
                "Content-Range": "bytes 0-3/4",
                "ETag": '"e"',
                "Last-Modified": "Wed, 01 May 2024 00:00:00 GMT",
            }.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"here")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", sent
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("word", ["bucket", "another prefix", "own endpoint", "authorize"])
@pytest.mark.parametrize("credentials", ["options", "environment", "none"])
@pytest.mark.parametrize("anonymous", [False, True])
@pytest.mark.parametrize("kind", STORES)
def test_a_secret_reaches_only_a_host_that_the_user_named(
    kind, anonymous, credentials, word, monkeypatch
):
    for name, value in ENVIRONMENT[kind].items() if credentials == "environment" else ():
        monkeypatch.setenv(name, value)
    own = dict(SECRETS[kind]) if credentials == "options" else {}
    if credentials == "none":
        own["anon"] = "true"
    with recording_server() as (stranger, to_stranger), recording_server() as (named, to_named):
        store, option = STORES[kind]
        container = VirtualChunkContainer(
            name=None,
            url_prefix=f"{kind}://bucket/",
            store_kind=store,
            store_options={
                option: stranger,
                "allow_http": True,
                "account": "stranger",
                **({"anonymous": True, "skip_signature": "true"} if anonymous else {}),
            },
        )
        authorized = [f"{kind}://bucket/"]
        if word == "another prefix":
            authorized += [f"{stranger}/deeper/", named, "https://stranger.example/"]
        if word == "authorize":
            authorized.append(stranger)
        if word == "own endpoint":
            own["endpoint_url"] = named
        resolver = VirtualResolver([container], authorized, {**own, "max_retries": "0"})

        def read():
            found = resolver.resolve(f"{kind}://bucket/x")
            request = ReadRequest(key=found.object_key, start=0, end=4)
            return open_storage(found.location).get_many([request])

        if word in ("bucket", "another prefix"):
            with pytest.raises(UnauthorizedVirtualChunkError) as caught:
                read()
            assert caught.value.facts["endpoint_url"] == stranger
            assert "canary" not in str(caught.value)
            assert to_stranger == to_named == []
            return
        assert read() == [b"here"]
        reached, silent = to_named, to_stranger
        if word == "authorize":
            reached, silent = to_stranger, to_named
        assert silent == []
        # The server records what it is sent, so that its silence proves something.
        is_signed = credentials == "options" or (credentials == "environment" and not anonymous)
        assert ("canary" in "".join(reached)) == is_signed


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("s3", {"region": "stranger.example/#"}),
        ("s3", {"region": "x@stranger.example/"}),
        ("s3", {"region": "x\r\nhost: stranger.example"}),
        ("az", {"account": "stranger.example/#"}),
        ("az", {"account": "x@stranger.example?"}),
    ],
)
def test_a_name_that_becomes_part_of_a_host_cannot_name_another(kind, options, monkeypatch):
    container = VirtualChunkContainer(
        name=None,
        url_prefix=f"{kind}://bucket/",
        store_kind="s3" if kind == "s3" else "azure",
        store_options=options,
    )
    own = {n: v for n, v in SECRETS[kind].items() if n != "account_name"}
    found = VirtualResolver([container], [f"{kind}://bucket/"], own).resolve(f"{kind}://bucket/x")
    connections = []
    monkeypatch.setattr("socket.create_connection", lambda to, **_: connections.append(to))
    with pytest.raises(IcechunkError) as caught:
        open_storage(found.location).get("x")
    assert caught.value.facts["option"] in ("region", "account_name")
    assert connections == []


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket/x", {"key": "k\n", "secret": "s"}),
        ("s3://bucket/x", {"key": "k", "secret": "s", "token": "t\n"}),
        ("gs://bucket/x", {"token": "t\r\n"}),
        ("az://bucket/x", {"account_name": "a", "account_key": "no base64"}),
        ("az://bucket/x", {"account_name": "a", "sas_token": "sig=x\n"}),
        ("s3://bücket/x", {"key": "k", "secret": "s", "virtual_hosted_style": "true"}),
        ("s3://bucket/x", {"key": "k", "secret": "s", "endpoint_url": "http://h:99999"}),
        ("s3://bucket/x", {"key": "k", "secret": "s", "endpoint_url": "http://a b"}),
    ],
)
def test_what_would_break_a_client_is_an_error(url, options):
    with recording_server() as (server, sent):
        given = {"endpoint_url": server, "max_retries": "0", **options}
        with pytest.raises(IcechunkError):
            open_storage(Location(url, client="obstore", options=given)).get("x")
        assert sent == []


@pytest.mark.parametrize("url", ["s3://bucket", "gs://bucket", "az://bucket", "http://{}/data"])
def test_a_host_in_other_letters_is_connected_to(url):
    """Full-width digits made the client panic; every client gets the host in ASCII."""
    with recording_server() as (server, sent):
        spelled = server.removeprefix("http://").replace("127.0", "１２７。０")
        options = {"endpoint_url": f"http://{spelled}", "anon": "true", "account_name": "a"}
        known = {"s3": 2, "gs": 2, "az": 3}.get(url[:2], 0)
        storage = open_storage(
            Location(
                url.format(spelled), client="obstore", options=dict(list(options.items())[:known])
            )
        )
        assert storage.get_many([ReadRequest(key="x", start=0, end=4)]) == [b"here"]
        assert len(sent) == 1


def test_no_encoding_of_dots_leaves_an_authorized_folder_of_a_web_server():
    with recording_server() as (server, sent):
        resolver = VirtualResolver([], [f"{server}/data/"], {})
        for end in ("%252e%252e/secret", "%252E./secret", "a%3Fb", "a%23b", "a%2520b", "a b"):
            found = resolver.resolve(f"{server}/data/{end}")
            request = ReadRequest(key=found.object_key, start=0, end=4)
            open_storage(found.location).get_many([request])
        paths = [each.split("\n")[0] for each in sent]
        assert paths == [
            "/data/%252e%252e/secret",
            "/data/%252E./secret",
            "/data/a%3Fb",
            "/data/a%23b",
            "/data/a%2520b",
            "/data/a%20b",
        ]
