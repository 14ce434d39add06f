"""A repository with a bit of everything, made with this project's own sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from icechunk_format.encoding.manifest.chunk_refs import inline_refs, native_refs, virtual_refs
from icechunk_format.repository import Repository
from icechunk_format.zarr.data_types import parse_data_type
from icechunk_format.zarr.new_nodes import build_array_metadata, build_group_metadata

if TYPE_CHECKING:
    from icechunk_format.storage.location import Location


def add_array(
    session: Any, path: str, shape: tuple[int, ...], chunks: tuple[int, ...], **more: Any
):
    shards = more.get("shards")
    document = build_array_metadata(
        shape=shape,
        data_type=parse_data_type(more.get("dtype", "float32"), node_path=path),
        chunk_shape=chunks,
        shard_shape=shards,
        fill_value=0,
        dimension_names=more.get("dims"),
        attributes=more.get("attributes") or {},
        node_path=path,
    )
    session.create_array(
        path,
        document.to_bytes(),
        shape=shape,
        num_chunks=[-(-n // c) for n, c in zip(shape, shards or chunks, strict=True)],
        dimension_names=more.get("dims"),
    )


def group_document(**attributes: Any) -> bytes:
    return build_group_metadata(attributes=attributes).to_bytes()


@dataclass(frozen=True)
class Weather:
    """A repository and the snapshots that were made in it, oldest first."""

    repository: Repository
    first: str
    second: str
    audit: str

    @property
    def url(self) -> str:
        return str(self.repository.location)


def write_weather(place: Location | str, spec_version: int = 2) -> Weather:
    """Write two commits to main, a tag on the first, and a branch from that with one commit."""
    repository = Repository.create(place, spec_version=spec_version)
    session = repository.writable_session()
    session.create_group("/", group_document(title="Weather"))
    session.create_group("/sea", group_document())
    attributes = {"units": "K", "valid_range": [180, 340]}
    add_array(session, "/lat", (4,), (4,), dims=("lat",), dtype="float64")
    add_array(session, "/t", (4, 6), (2, 3), dims=("lat", "lon"), attributes=attributes)
    add_array(session, "/height", (), ())
    add_array(session, "/sea/ice", (8, 8), (2, 2), dims=(None, "x"), shards=(4, 8))
    session.set_chunk("/lat", (0,), b"i" * 9)
    ids = np.arange(24, dtype=np.uint8).reshape(2, 12)
    session.set_refs("/t", native_refs([(0, 0), (1, 1)], ids, [100, 200]))
    places = ["s3://other/a.nc", "s3://other/b.nc"]
    session.set_refs("/sea/ice", virtual_refs([(0, 0), (1, 0)], places, [8, 16], [1000, 2000]))
    first = session.commit("Write it\n\nwith a second paragraph", metadata={"by": "us"})
    repository.create_tag("v1", first.snapshot_id)
    repository.create_branch("audit", first.snapshot_id)
    session = repository.writable_session("audit")
    session.set_refs("/t", inline_refs([(1, 0)], [b"12345"]))
    audit = session.commit("Look at it")
    session = repository.writable_session()
    session.set_refs("/t", inline_refs([(0, 1)], [b"12345"]))
    session.update_metadata("/sea", group_document(new=1))
    second = session.commit("Change it")
    return Weather(
        repository, str(first.snapshot_id), str(second.snapshot_id), str(audit.snapshot_id)
    )
