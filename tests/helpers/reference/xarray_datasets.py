"""Datasets of xarray in repositories, written through the reference library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from helpers.builder import reference_repository

from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset

if TYPE_CHECKING:
    from pathlib import Path

    import xarray as xr

    from icechunk_format.tables import Dataset


def store_dataset(
    dataset: xr.Dataset, path: Path | str, encoding: dict[str, Any] | None = None
) -> str:
    """Write a dataset to a new local repository in one commit; return the path."""
    session = reference_repository(path).writable_session("main")
    dataset.to_zarr(session.store, consolidated=False, mode="w", encoding=encoding or {})
    session.commit("a dataset")
    return str(path)


def opened(path: str) -> Dataset:
    """Open the root of ``main`` with this library."""
    repository = Repository.open(path)
    return open_dataset(repository, repository.resolve(branch="main"))
