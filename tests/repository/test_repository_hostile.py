"""Repositories made to harm readers are refused at bounded cost, without forbidden requests.

Beside the fuzzing of decoders: here every byte keeps the format, and what it says is the attack.
"""

from __future__ import annotations

import http.server
import json
import threading
import time
import tracemalloc

import numpy as np
import pytest
from helpers.raised import raises
from helpers.sessions.model import group_document

from icechunk_format.encoding.manifest.chunk_refs import native_refs, virtual_refs
from icechunk_format.errors import (
    FormatError,
    IcechunkError,
    StorageError,
    UnauthorizedVirtualChunkError,
    UnsupportedError,
)
from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset
from icechunk_format.tables.reading import run_scan
from icechunk_format.zarr.zarr_json import parse_array_metadata

GROUP = group_document()


def document(**changes):
    made = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}],
        "attributes": {},
        "dimension_names": ["x"],
    }
    return json.dumps({**made, **changes}).encode()


def repository_with(path, user_data=None, refs=None, shape=(4,), names=("x",)):
    repository = Repository.create(str(path))
    session = repository.writable_session()
    session.create_group("/", GROUP)
    session.create_array(
        "/a", user_data or document(), shape=shape, num_chunks=(1,) * len(shape),
        dimension_names=names,
    )  # fmt: skip
    if refs is not None:
        session.set_refs("/a", refs)
    session.commit("hostile")
    return repository


def virtual(location, offset=0, length=4):
    return virtual_refs(
        np.zeros((1, 1), dtype=np.uint32),
        locations=[location],
        offsets=np.array([offset], dtype=np.uint64),
        lengths=np.array([length], dtype=np.uint64),
    )


def fetched(repository, authorized=()):
    snapshot = repository.snapshot(repository.resolve())
    node = snapshot.node("/a")
    refs = repository.manifest(node.array.manifests.manifest_id(0)).array(node.id).refs
    source = repository.chunk_source(authorized=authorized)
    return source.fetch(refs, np.arange(len(refs)))


# -- places ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "file:///allowed/../etc/passwd",
        "http://127.0.0.1/x",
        "http://[::1]/x",
        "http://169.254.169.254/latest/meta-data",
        "http://metadata.google.internal/computeMetadata",
        "s3://other-bucket/x",
        "s3://bucket/dir/../other/x",
        "s3://bucket/dir/%2e%2e/other/x",
    ],
)
def test_nothing_is_fetched_from_places_that_nobody_named(tmp_path, location):
    repository = repository_with(tmp_path, refs=virtual(location))
    allowed = ["s3://bucket/dir/", "file:///allowed/", "https://example.org/"]
    for authorized in ([], allowed):
        with pytest.raises((UnauthorizedVirtualChunkError, FormatError)):
            fetched(repository, authorized)


def test_a_link_in_an_authorized_folder_does_not_lead_out_of_it(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (inside / "x.nc").symlink_to(outside / "secret")
    repository = repository_with(tmp_path / "r", refs=virtual((inside / "x.nc").as_uri()))
    with raises(StorageError, key="x.nc", option="storage.follow_symlinks"):
        fetched(repository, [inside.as_uri()])


class Web:
    """A server that redirects everything elsewhere, and one that must not be asked."""

    def __init__(self):
        self.asked = []
        outer = self

        class Inner(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked.append(self.path)
                self.send_response(200)
                self.send_header("Content-Length", "4")
                self.end_headers()
                self.wfile.write(b"leak")

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        class Redirecting(Inner):
            def do_GET(self):
                port = outer.servers[0].server_port
                self.send_response(302)
                self.send_header("Location", f"http://127.0.0.1:{port}/latest/meta-data")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_HEAD = do_GET

        self.servers = [
            http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) for kind in (Inner, Redirecting)
        ]
        for server in self.servers:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.servers[1].server_port}/"

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()


def test_an_authorized_server_cannot_send_the_reader_to_a_metadata_service(tmp_path):
    web = Web()
    try:
        repository = repository_with(tmp_path, refs=virtual(f"{web.url}x.nc"))
        with pytest.raises(StorageError, match=r"redirects to 127\.0\.0\.1.*was not followed"):
            fetched(repository, [web.url])
        assert web.asked == []
    finally:
        web.close()


# -- sizes -------------------------------------------------------------------------------------


def within(seconds, megabytes, act):
    tracemalloc.start()
    started = time.process_time()
    try:
        act()
        peak = tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < seconds
    assert peak < megabytes


def first_chunk(data):
    found = parse_array_metadata(data, node_path="/a")
    return found.fill_array(found.grid.full_chunk_shape((0,) * found.ndim))


def test_shapes_of_10_to_the_9_dimensions_and_elements(tmp_path):
    def refuse():
        for shape in ([1] * 10_000, [1] * 100_000, [2**63], [10**30], [2**62, 2**62]):
            data = document(
                shape=shape,
                chunk_grid={"name": "regular", "configuration": {"chunk_shape": shape}},
                dimension_names=None,
            )
            with pytest.raises(IcechunkError):
                first_chunk(data)

    within(20, 600, refuse)


def test_an_array_of_10_to_the_18_cells_is_planned_and_cut(tmp_path):
    shape = [10**9, 10**9]
    data = document(
        shape=shape,
        chunk_grid={"name": "regular", "configuration": {"chunk_shape": [10**6, 10**6]}},
        dimension_names=["y", "x"],
    )
    repository = Repository.create(str(tmp_path))
    session = repository.writable_session()
    session.create_group("/", GROUP)
    session.create_array(
        "/a", data, shape=shape, num_chunks=(1000, 1000), dimension_names=("y", "x")
    )
    session.commit("hostile")
    dataset = open_dataset(repository, repository.resolve())

    def plan():
        made = dataset.plan(dataset.table())
        assert made.rows == 10**18
        assert len(made.tasks) <= 1_100_000

    within(30, 500, plan)


@pytest.mark.parametrize(
    "value", ["A" * 10_000_000, [1] * 100_000, {"a": 1}, 10**400, "\x1b]0;owned\x07", -1, 256]
)
def test_fill_values_that_are_none(value):
    def refuse():
        with pytest.raises(IcechunkError) as caught:
            _ = parse_array_metadata(document(fill_value=value), node_path="/a").fill_value
        assert len(str(caught.value)) < 2000
        assert "\x1b" not in str(caught.value)

    within(5, 200, refuse)


@pytest.mark.parametrize("length", [0, 3, 5, 2**20, 2**40, 2**63, 2**64 - 1])
def test_lengths_that_lie(tmp_path, length):
    """The reference says how long its object is; the object is four bytes long."""
    repository = Repository.create(str(tmp_path))
    session = repository.writable_session()
    session.create_group("/", GROUP)
    session.create_array("/a", document(), shape=(4,), num_chunks=(1,), dimension_names=("x",))
    session.set_chunk("/a", [0], bytes(600))
    session.commit("honest")
    snapshot = repository.snapshot(repository.resolve())
    node = snapshot.node("/a")
    honest = repository.manifest(node.array.manifests.manifest_id(0)).array(node.id).refs
    lengths = np.array([length], dtype=np.uint64)

    def read_lies():
        lies = native_refs(honest.coords, chunk_ids=honest.chunk_id, lengths=lengths)
        session = repository.writable_session()
        session.set_refs("/a", lies)
        session.commit("lies")
        dataset = open_dataset(repository, repository.resolve())
        plan = dataset.plan(dataset.table())
        for task in plan.tasks:
            list(run_scan(plan.context, task))

    def refuse():
        with pytest.raises(IcechunkError):
            read_lies()

    within(10, 100, refuse)


# -- words -------------------------------------------------------------------------------------


def test_words_that_would_act_on_a_terminal_are_not_said(tmp_path):
    evil = "x\x1b]0;owned\x07\x1b[2J\r\u202e"
    bad = document(data_type=evil, codecs=[{"name": evil}], chunk_grid={"name": evil})
    found = parse_array_metadata(bad, node_path="/a")
    for ask in (lambda: found.data_type, lambda: found.grid, lambda: found.chunk_codecs()):
        with pytest.raises((UnsupportedError, FormatError)) as caught:
            ask()
        assert not set("\x1b\x07\r") & set(str(caught.value))
    named = document(attributes={"units": evil, "long_name": evil}, dimension_names=[evil])
    repository = repository_with(tmp_path, user_data=named, names=(evil,))
    dataset = open_dataset(repository, repository.resolve())
    with pytest.raises(IcechunkError) as caught:
        dataset.plan(dataset.table(), sel="y=3")
    assert not set("\x1b\x07\r") & set(str(caught.value))
