"""Repositories for the suites that go through Spark: small, and with values known in NumPy.

Built with the reference library, so that what Spark shows is compared with bytes that we did not
write. The functions need the ``icechunk`` and ``zarr`` wheels, and import them when called, so
that tests which carry the mark ``needs_reference`` can be left out on machines without.
"""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from helpers.builder import reference_repository

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TIMES = np.datetime64("2024-07-01T00:00:00", "us") + np.arange(8) * np.timedelta64(6, "h")
LATITUDES = np.linspace(60.0, 35.0, 6)
LONGITUDES = np.linspace(0.0, 18.0, 10)
SHAPE = (len(TIMES), len(LATITUDES), len(LONGITUDES))


def _temperatures() -> np.ndarray:
    values = (np.arange(np.prod(SHAPE)) * 0.25 + 250).astype("float32").reshape(SHAPE)
    values[1, 2, 3:6] = np.nan
    return values


T2M_V1 = _temperatures()
T2M = T2M_V1.copy()
T2M[0] = 1.0
WIND_STORED = (np.arange(np.prod(SHAPE)) % 300 - 100).astype("int16").reshape(SHAPE)
WIND_STORED[3, 0, :4] = -999
ELEVATION = (np.arange(60).reshape(6, 10) * 10).astype("int32")
SALINITY = np.arange(12, dtype="float64").reshape(3, 4)
STATION_NAMES = np.array(["Bergen", "Zürich", "Nice"])


@dataclass(frozen=True, kw_only=True)
class Weather:
    """A repository with two commits.

    ``v1`` is tagged ``v1`` and is where branch ``dev`` stayed; ``main`` has the first time step of
    ``t2m`` set to one. ``between`` is an instant between the two commits.
    """

    path: str
    v1: str
    v2: str
    between: datetime.datetime


def commit(repository: Any, message: str, change: Callable[[Any], None]) -> str:
    """Apply ``change`` to the root group of ``main`` and commit; return the snapshot id."""
    import zarr

    session = repository.writable_session("main")
    change(zarr.open_group(session.store, mode="a"))
    return session.commit(message)


def add_array(
    group: Any,
    name: str,
    data: np.ndarray,
    dims: list[str],
    *,
    chunks: tuple[int, ...] | None = None,
    **attributes: Any,
) -> None:
    """Add an array with dimension names; floats get NaN for chunks that were never written."""
    group.create_array(
        name,
        data=data,
        chunks=chunks or data.shape,
        dimension_names=dims,
        attributes=attributes,
        fill_value=np.nan if data.dtype.kind == "f" else None,
    )


def _add_grid(root: Any) -> None:
    root.update_attributes({"title": "weather"})
    hours = ((TIMES - TIMES[0]) // np.timedelta64(1, "h")).astype("int64")
    cube = ["time", "latitude", "longitude"]
    add_array(root, "time", hours, ["time"], units="hours since 2024-07-01", calendar="standard")
    add_array(root, "latitude", LATITUDES, ["latitude"], units="degrees_north")
    add_array(root, "longitude", LONGITUDES, ["longitude"], units="degrees_east")
    temperature = {"units": "K", "long_name": "2 metre temperature"}
    add_array(root, "t2m", T2M_V1, cube, chunks=(2, 3, 5), **temperature)
    packing = {"scale_factor": 0.1, "add_offset": 5.0, "_FillValue": -999}
    add_array(root, "wind", WIND_STORED, cube, chunks=(4, 6, 10), units="m s-1", **packing)
    add_array(root, "elevation", ELEVATION, ["latitude", "longitude"], units="m")
    ocean = root.create_group("ocean")
    add_array(ocean, "salinity", SALINITY, ["station", "depth"], chunks=(1, 4))
    add_array(ocean, "station", STATION_NAMES, ["station"])


def build_weather(path: Path) -> Weather:
    """Build a grid with CF times, packed values and a sub-group, in two commits."""
    return fill_weather(reference_repository(path), str(path))


def fill_weather(repository: Any, url: str) -> Weather:
    """Do the same in an empty repository of the reference library that lies at ``url``."""
    v1 = commit(repository, "the grid", _add_grid)
    repository.create_tag("v1", snapshot_id=v1)
    repository.create_branch("dev", snapshot_id=v1)
    time.sleep(0.02)
    between = datetime.datetime.now(datetime.UTC)
    time.sleep(0.02)

    def correct(root: Any) -> None:
        root["t2m"][0] = 1.0

    v2 = commit(repository, "correct the first step", correct)
    return Weather(path=url, v1=v1, v2=v2, between=between)


def build_two_groups(path: Path) -> str:
    """Build a root without arrays and two groups that have some."""

    def add(root: Any) -> None:
        for name in ("north", "south"):
            add_array(root.create_group(name), "depth", np.arange(4.0), ["x"])

    commit(reference_repository(path), "two groups", add)
    return str(path)


def build_two_dimension_sets(path: Path) -> str:
    """Build two arrays that share no dimension."""

    def add(root: Any) -> None:
        add_array(root, "a", np.arange(3.0), ["x"])
        add_array(root, "b", np.arange(4.0), ["y"])

    commit(reference_repository(path), "two sets", add)
    return str(path)
