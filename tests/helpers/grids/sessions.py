"""Sessions over one array of small chunks, and what they left of its manifests."""

import numpy as np
from helpers.builder import add_array

from icechunk_format.encoding.values.flexbuffers import encode_flexbuffer
from icechunk_format.repository.state.publish import update_repo
from icechunk_format.repository.state.transitions import set_config


def split_manifests(repository, **sizes):
    """Configure how manifests are split: axis numbers as ``axis0=...``, or ``any=...``."""
    rules = [
        {
            "condition": "Any" if name == "any" else {"Axis": int(name[4:])},
            "num_chunks": count,
        }
        for name, count in sizes.items()
    ]
    config = {"manifest": {"splitting": {"split_sizes": [["any_array", rules]]}}}
    update_repo(repository.storage, lambda info: set_config(info, encode_flexbuffer(config)))


def grid_session(repository, shape, chunks=None):
    """Begin a session, with an array ``/a`` of ``shape`` chunks if there is none."""
    session = repository.writable_session()
    if session.node("/a") is None:
        add_array(session, "/a", shape)
    return session


def set_block(session, *ranges, payload=b"x", path="/a"):
    """Set every chunk in the product of ``ranges``, one range of coordinates for each axis."""
    coords = np.array(np.meshgrid(*ranges, indexing="ij")).reshape(len(ranges), -1).T
    session.set_chunks(path, coords, [payload] * len(coords))


def manifest_ids(repository, snapshot_id=None, path="/a"):
    """Return the ids of the manifests that the array at ``path`` refers to."""
    snapshot = repository.snapshot(snapshot_id or repository.resolve())
    refs = snapshot.node(path).array.manifests
    return {refs.manifest_id(row) for row in range(len(refs))}
