"""Archives on an S3 server: listed, scanned, referenced, read back, and refreshed by their tags."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import obstore
import pytest
from helpers.archives import files as made
from helpers.archives.running import concatenated, statuses
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.storage.location import Location
from icechunk_format.storage.options import VirtualAccess
from icechunk_format.tables import open_dataset
from icechunk_format.workflows.running import in_process
from icechunk_format.workflows.virtualizing import Archive, virtualize_files

pytest.importorskip("virtualizarr")
pytestmark = pytest.mark.needs_reference

COUNT = 30


def test_an_archive_on_s3_becomes_one_dataset(s3_server, shared_bucket, tmp_path):
    folder = str(uuid.uuid4())
    files = made.archive(tmp_path / "files", count=COUNT)
    names = [f"{folder}/2024 07/{number:03}.nc" for number in range(COUNT)]
    store = s3_server.raw_store(shared_bucket)

    def upload(number):
        obstore.put(store, names[number], Path(files[number]).read_bytes())

    for number in range(COUNT):
        upload(number)
    obstore.put(store, f"{folder}/2024 07/note.nc", b"<html>")
    location = Location(f"s3://{shared_bucket}/{folder}-made", options=s3_server.storage_options)

    def virtualize(**how):
        archive = Archive(
            location=location,
            names=[f"s3://{shared_bucket}/{folder}/**/*.nc"],
            options=WriteOptions(mode="append", layout="refs"),
            dims=("time",),
            access=VirtualAccess((), s3_server.storage_options),
            **how,
        )
        return virtualize_files(archive, in_process, cores=4)

    with raises(InvalidInputError, refused=1):
        virtualize()
    done = virtualize(on_mismatch="skip")
    assert (done.files_added, done.places) == (COUNT, (f"s3://{shared_bucket}/",))
    repository = Repository.open(location)
    [container] = repository.config.virtual_chunk_containers
    assert s3_server.secret_key not in repr(container.store_options)

    def values(snapshot_id):
        dataset = open_dataset(
            repository,
            snapshot_id,
            access=VirtualAccess(done.places, s3_server.storage_options),
        )
        return dataset.read("t2m")

    np.testing.assert_array_equal(values(done.snapshot_id), concatenated(files)["t2m"].values)
    changed = made.dataset(7)
    changed["t2m"] = changed["t2m"] + 1
    changed.to_netcdf(files[7], engine="h5netcdf", encoding=made.COMPRESSED)
    upload(7)
    again = virtualize(on_mismatch="skip")
    assert [name for name, status in statuses(again).items() if status == "refreshed"] == ["007.nc"]
    np.testing.assert_array_equal(values(again.snapshot_id), concatenated(files)["t2m"].values)
