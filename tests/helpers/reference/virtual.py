"""Repositories of the reference with virtual chunks in HDF5 files beside them.

Needs ``h5py`` for those files.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import h5py
import icechunk
import numpy as np
import zarr
from helpers.reference.building import ReferenceRepository, create, numbers

if TYPE_CHECKING:
    from pathlib import Path


def _write_hdf5(path: Path, values: np.ndarray) -> int:
    """Write ``values`` contiguously under ``data`` and return the offset of its first byte."""
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("data", data=values)
        file.flush()
        return int(dataset.id.get_offset())


def _virtual_config(container: icechunk.VirtualChunkContainer) -> icechunk.RepositoryConfig:
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(container)
    return config


def _virtual_source(directory: Path) -> tuple[Path, str]:
    source = directory.parent / f"{directory.name}-source"
    source.mkdir(parents=True, exist_ok=True)
    # The reference validates locations encoded and reads them decoded, so that it can use a
    # container only where both are the same.
    return source, source.as_uri() + "/"


def _virtual_array(
    root: zarr.Group, name: str, shape: tuple[int, ...], chunks: tuple[int, ...]
) -> None:
    root.create_array(
        name, shape=shape, chunks=chunks, dtype="float64", compressors=None, fill_value=np.nan
    )


def virtual_chunks(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Refer to HDF5 files by absolute locations, one of them with a time as checksum.

    The files have a space in their names, so locations are percent-encoded.
    """
    source, prefix = _virtual_source(directory)
    store = icechunk.local_filesystem_store(str(source))
    container = icechunk.VirtualChunkContainer(prefix, store)
    repository, built = create(
        directory, spec_version, config=_virtual_config(container), virtual_prefixes=(prefix,)
    )
    repository.save_config()
    values = numbers(40, 25, dtype="float64")
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    _virtual_array(root, "data", (50, 25), (10, 25))
    specs = []
    written = datetime.datetime.now(datetime.UTC)
    for block in range(4):
        file = source / f"part {block}.h5"
        offset = _write_hdf5(file, values[block * 10 : block * 10 + 10])
        checksum: dict[str, Any] = {}
        if block == 2:
            checksum["last_updated_at_checksum"] = written + datetime.timedelta(seconds=3)
        specs.append(
            icechunk.VirtualChunkSpec(
                index=[block, 0], location=file.as_uri(), offset=offset, length=2000, **checksum
            )
        )
    assert not session.store.set_virtual_refs("data", specs)
    root["data"][40:] = numbers(10, 25, dtype="float64", seed=4)
    built.snapshots["virtual"] = session.commit("virtual chunks")
    return built


def named_container(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Write locations of the form ``vcc://NAME/path`` beside absolute ones of one container."""
    source, prefix = _virtual_source(directory)
    store = icechunk.local_filesystem_store(str(source))
    container = icechunk.VirtualChunkContainer(prefix, store, name="sources")
    repository, built = create(
        directory, spec_version, config=_virtual_config(container), virtual_prefixes=(prefix,)
    )
    repository.save_config()
    values = numbers(20, 25, dtype="float64")
    offset = _write_hdf5(source / "all.h5", values)
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    _virtual_array(root, "data", (20, 25), (10, 25))
    session.store.set_virtual_ref("data/c/0/0", "vcc://sources/all.h5", offset=offset, length=2000)
    session.store.set_virtual_ref(
        "data/c/1/0", prefix + "all.h5", offset=offset + 2000, length=2000
    )
    built.snapshots["named"] = session.commit("named container")
    return built


def compressed_locations(directory: Path, spec_version: int = 2) -> ReferenceRepository:
    """Write 1,200 virtual references over 60 files: enough for a dictionary of locations."""
    source, prefix = _virtual_source(directory)
    store = icechunk.local_filesystem_store(str(source))
    container = icechunk.VirtualChunkContainer(prefix, store)
    repository, built = create(
        directory, spec_version, config=_virtual_config(container), virtual_prefixes=(prefix,)
    )
    repository.save_config()
    values = numbers(1200, 4, dtype="float64")
    locations = []
    offsets = []
    for block in range(60):
        file = source / f"station-{block:04d}-daily-mean-temperature.h5"
        start = _write_hdf5(file, values[block * 20 : block * 20 + 20])
        locations += [file.as_uri()] * 20
        offsets += [start + 32 * row for row in range(20)]
    session = repository.writable_session("main")
    root = zarr.create_group(session.store)
    _virtual_array(root, "data", (1200, 4), (1, 4))
    assert not session.store.set_virtual_refs_arr(
        "data",
        (1200, 1),
        locations,
        np.array(offsets, dtype=np.uint64),
        np.full(1200, 32, dtype=np.uint64),
    )
    built.snapshots["compressed"] = session.commit("compressed locations")
    return built
