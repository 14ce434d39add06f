"""Labels that a process keeps reach only a reader that may fetch them."""

import json

import pytest
from helpers.sessions.model import group_document

from icechunk_format.encoding.manifest.chunk_refs import virtual_refs
from icechunk_format.errors import UnauthorizedVirtualChunkError
from icechunk_format.repository import Repository
from icechunk_format.storage.options import VirtualAccess
from icechunk_format.tables import open_dataset
from icechunk_format.tables.reading import run_scan

DOCUMENT = {
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


def test_kept_labels_of_virtual_chunks_need_the_authorization_again(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "x").write_bytes(bytes(range(4)))
    repository = Repository.create(str(tmp_path / "r"))
    session = repository.writable_session()
    session.create_group("/", group_document())
    for path in ("/a", "/x"):
        made = json.dumps(DOCUMENT).encode()
        session.create_array(path, made, shape=(4,), num_chunks=(1,), dimension_names=("x",))
    session.set_refs("/x", virtual_refs([(0,)], [(source / "x").as_uri()], [0], [4]))
    snapshot_id = session.commit("virtual").snapshot_id

    def read(*authorize, sel=None):
        dataset = open_dataset(repository, snapshot_id, access=VirtualAccess(authorize))
        plan = dataset.plan(dataset.table(), sel=sel)
        for task in plan.tasks:
            list(run_scan(plan.context, task))

    read(source.as_uri(), sel="x=1")
    (source / "x").unlink()
    with pytest.raises(UnauthorizedVirtualChunkError):
        read(sel="x=1")
