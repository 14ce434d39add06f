"""What every repository that is built with the reference library is made of.

Contents are the same on every run (fixed seeds and names). Ids and times are the reference's own,
so they differ from run to run; tests use the labels under which a ``ReferenceRepository`` keeps
its snapshots.

Needs the ``icechunk`` and ``zarr`` wheels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import icechunk
import numpy as np
import zarr
from helpers.builder import file_access, reference_repository

if TYPE_CHECKING:
    from pathlib import Path

SEED = 20240701

# The reference warns about local file systems on every open; in a test run that is only noise.
icechunk.set_logs_filter("off")


@dataclass(frozen=True, kw_only=True)
class ReferenceRepository:
    """A repository on the local file system that the reference library wrote.

    ``snapshots`` maps labels to snapshot ids in the order of their commits. ``virtual_prefixes``
    are the URL prefixes that a reader has to authorize.
    """

    path: Path
    spec_version: int
    snapshots: dict[str, str] = field(default_factory=dict)
    virtual_prefixes: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The place of the repository as a URL."""
        return self.path.as_uri()

    def open(self) -> icechunk.Repository:
        """Open with the reference library, with access to the virtual chunks."""
        return icechunk.Repository.open(
            icechunk.local_filesystem_storage(str(self.path)),
            authorize_virtual_chunk_access=file_access(self.virtual_prefixes),
        )


def create(
    directory: Path,
    spec_version: int,
    *,
    config: icechunk.RepositoryConfig | None = None,
    virtual_prefixes: tuple[str, ...] = (),
) -> tuple[icechunk.Repository, ReferenceRepository]:
    """Create a repository in a directory; its first snapshot is labelled ``initial``."""
    directory.mkdir(parents=True, exist_ok=True)
    repository = reference_repository(
        directory, spec_version=spec_version, config=config, prefixes=virtual_prefixes
    )
    built = ReferenceRepository(
        path=directory, spec_version=spec_version, virtual_prefixes=virtual_prefixes
    )
    built.snapshots["initial"] = repository.lookup_branch("main")
    return repository, built


def numbers(*shape: int, dtype: str = "float32", seed: int = SEED) -> np.ndarray:
    """Return numbers like temperatures in kelvin, the same for one seed."""
    return np.random.default_rng(seed).normal(280, 10, shape).astype(dtype)


def add_weather(store: Any, *, steps: int = 6) -> None:
    """Write a group with coordinates, one array of native chunks and one of inline chunks."""
    root = zarr.create_group(store, attributes={"title": "weather"})
    for name, values in (
        ("time", np.arange(steps, dtype="int64")),
        ("latitude", np.linspace(80, -80, 12)),
        ("longitude", np.linspace(0, 345, 24)),
    ):
        root.create_array(name, data=values, chunks=values.shape, dimension_names=[name])
    root.create_array(
        "t2m",
        data=numbers(steps, 12, 24),
        chunks=(2, 12, 24),
        dimension_names=["time", "latitude", "longitude"],
        attributes={"units": "K"},
    )
    root.create_array(
        "rain",
        data=numbers(steps, 12, 24, dtype="int16"),
        chunks=(1, 4, 8),
        dimension_names=["time", "latitude", "longitude"],
    )
