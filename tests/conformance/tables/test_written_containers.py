"""The reference reads virtual references that we write without any containers being named."""

import icechunk
import numpy as np
import pyarrow as pa
import zarr

from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.storage.options import VirtualAccess
from icechunk_format.tables.writing.in_process import write_table


def test_the_reference_reads_virtual_chunks_of_a_written_container(tmp_path):
    files = []
    for day in range(2):
        folder = tmp_path / "archive" / str(day)
        folder.mkdir(parents=True)
        files.append(folder / "data.raw")
        files[-1].write_bytes(np.arange(3, dtype="<f4").tobytes())
    rows = pa.table(
        {
            "array": ["v", "v"],
            "chunk": pa.array([[0], [1]], pa.list_(pa.int64())),
            "kind": ["virtual", "virtual"],
            "location": [file.as_uri() for file in files],
            "offset": [0, 0],
            "length": [12, 12],
        }
    )
    described = {"shape": [6], "chunks": [3], "dtype": "float32", "dims": ["x"], "compressors": []}
    place = str(tmp_path / "repository")
    write_table(place, rows, WriteOptions(layout="refs", encoding={"v": described}))
    prefix = (tmp_path / "archive").as_uri() + "/"
    [container] = Repository.open(place).config.virtual_chunk_containers
    assert container.url_prefix == prefix
    theirs = icechunk.Repository.open(
        icechunk.local_filesystem_storage(place),
        authorize_virtual_chunk_access={prefix: icechunk.credentials.LocalFileSystemAccess},
    )
    group = zarr.open_group(theirs.readonly_session("main").store, mode="r")
    np.testing.assert_array_equal(group["v"][:], [0, 1, 2, 0, 1, 2])


def test_the_reference_reads_configurations_with_written_containers(tmp_path):
    locations = [
        "s3://one/a.nc",
        "gs://two/a.nc",
        "az://three/a.nc",
        "https://example.org/a.nc",
        "file:///data/a.nc",
    ]
    rows = pa.table(
        {
            "array": ["v"] * 5,
            "chunk": pa.array([[n] for n in range(5)], pa.list_(pa.int64())),
            "kind": ["virtual"] * 5,
            "location": locations,
            "offset": [0] * 5,
            "length": [12] * 5,
        }
    )
    described = {"shape": [15], "chunks": [3], "dtype": "float32", "dims": ["x"]}
    for spec_version in (1, 2):
        place = str(tmp_path / str(spec_version))
        options = WriteOptions(layout="refs", encoding={"v": described}, spec_version=spec_version)
        write_table(place, rows, options, VirtualAccess(options={"region": "eu-central-1"}))
        theirs = icechunk.Repository.open(icechunk.local_filesystem_storage(place))
        found = theirs.config.virtual_chunk_containers
        assert sorted(found) == sorted(text.removesuffix("a.nc") for text in locations)
