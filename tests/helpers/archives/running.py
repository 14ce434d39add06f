"""Virtualizes without Spark, and reads what came of it by the reference and by our own reader."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import icechunk
import xarray as xr
from helpers.builder import reference_repository

from icechunk_format.options.write import WriteOptions
from icechunk_format.storage.location import Location
from icechunk_format.storage.options import VirtualAccess
from icechunk_format.workflows.running import Run, in_process
from icechunk_format.workflows.virtualizing import Archive, virtualize_files
from icechunk_format.workflows.virtualizing.planning.template import parse_template

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from icechunk_format.workflows.virtualizing import VirtualizeResult


def virtualize(
    files: str | Sequence[str],
    path: Path | str,
    *,
    concat_dim: str | tuple[str, ...] | None = None,
    template: str | None = None,
    options: dict[str, Any] | None = None,
    run: Run = in_process,
    **how: Any,
) -> VirtualizeResult[pa.Table]:
    """Virtualize files in this process, along time unless dimensions are given."""
    names = None if template is None else parse_template(template)
    dims = (concat_dim,) if isinstance(concat_dim, str) else concat_dim
    archive = Archive(
        location=Location(str(path)),
        names=[files] if isinstance(files, str) else list(files),
        options=WriteOptions(mode="append", layout="refs", **(options or {})),
        dims=dims if dims is not None else ("time",) if names is None else (),
        template=names,
        access=VirtualAccess(how.pop("authorize", ()), how.pop("virtual_options", {})),
        **how,
    )
    return virtualize_files(archive, run, cores=2)


def statuses(done: VirtualizeResult[pa.Table]) -> dict[str, str]:
    """Return the status of each file by its name."""
    rows = done.report.to_pylist()
    return {row["file"].rpartition("/")[2]: row["status"] for row in rows}


def by_reference(path: Path | str, group: str | None = None, **how: Any) -> xr.Dataset:
    """Return the dataset as the reference library and xarray read it."""
    access = icechunk.credentials.LocalFileSystemAccess
    storage = icechunk.local_filesystem_storage(str(path))
    places = icechunk.Repository.open(storage).config.virtual_chunk_containers or {}
    repository = icechunk.Repository.open(
        storage, authorize_virtual_chunk_access=dict.fromkeys(places, access)
    )
    store = repository.readonly_session("main").store
    return xr.open_zarr(store, group=group, consolidated=False, chunks=None, **how).load()


def concatenated(files: Sequence[str], dim: str = "time", **how: Any) -> xr.Dataset:
    """Return what ``open_mfdataset`` makes of files, without dask."""
    parts = [xr.open_dataset(file, **how).load() for file in files]
    return xr.concat(
        parts, dim, data_vars="minimal", coords="minimal", compat="override", join="exact",
        combine_attrs="override",
    )  # fmt: skip


def by_virtualizarr(files: Sequence[str], path: Path, parser: Any, dim: str = "time") -> None:
    """Make a repository of the files by VirtualiZarr's own combination."""
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_mfdataset

    folder = str(Path(files[0]).parent)
    place = f"file://{folder}/"
    config = icechunk.RepositoryConfig.default()
    store = icechunk.local_filesystem_store(folder)
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(place, store))
    combined = open_virtual_mfdataset(
        [Path(file).as_uri() for file in files],
        registry=ObjectStoreRegistry({"file://": LocalStore()}),
        parser=parser,
        combine="nested",
        concat_dim=dim,
        coords="minimal",
        data_vars="minimal",
        compat="override",
        combine_attrs="override",
    )
    repository = reference_repository(path, config=config)
    session = repository.writable_session("main")
    combined.vz.to_icechunk(session.store)
    session.commit("by VirtualiZarr")
