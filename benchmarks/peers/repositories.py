"""Writes the repositories that the benchmarks read, with the reference library."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import obstore

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.servers.s3 import S3Server

    from icechunk_format import Location

DIMS = ["time", "latitude", "longitude"]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """An ERA5-like array in one repository, with a group for each chunk shape."""

    path: str
    shape: tuple[int, int, int]
    layouts: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]]

    @property
    def cells(self) -> int:
        return int(np.prod(self.shape))


def build_grid(folder: Path, scale: float) -> Grid:
    """Write hourly temperatures: 24 steps of 721 x 1440 at scale 1, fewer and coarser below."""
    import zarr

    steps = max(2, round(24 * scale))
    fine = scale >= 1 / 12
    shape = (steps, 721, 1440) if fine else (steps, 145, 288)
    tile = (min(24, steps), 90, 90) if fine else (min(24, steps), 18, 18)
    shard = (tile[0], 4 * tile[1], 8 * tile[2])
    layouts: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {
        "planes": ((1, *shape[1:]), None),
        "tiles": (tile, None),
        "shards": (tile, shard),
    }
    values = temperatures(shape)
    session = new_repository(folder / "grid").writable_session("main")
    root = zarr.open_group(session.store, mode="a")
    for name, (chunks, shards) in layouts.items():
        group = root.create_group(name)
        coordinates = {
            "time": np.arange(steps, dtype="int64"),
            "latitude": np.linspace(90, -90, shape[1]),
            "longitude": np.linspace(0, 360, shape[2], endpoint=False),
        }
        for dim, labels in coordinates.items():
            units = {"units": "hours since 2024-07-01"} if dim == "time" else {}
            group.create_array(dim, data=labels, dimension_names=[dim], attributes=units)
        group.create_array(
            "t2m", data=values, chunks=chunks, shards=shards, dimension_names=DIMS, fill_value=0.0
        )
    session.commit("an ERA5-like grid")
    return Grid(path=str(folder / "grid"), shape=shape, layouts=layouts)


def temperatures(shape: tuple[int, int, int]) -> np.ndarray:
    """Return smooth fields with noise, quantized like packed weather data."""
    steps, rows, columns = shape
    latitude = np.cos(np.linspace(-np.pi / 2, np.pi / 2, rows, dtype="f4"))[:, None]
    longitude = np.linspace(0, 2 * np.pi, columns, dtype="f4")[None, :]
    random = np.random.default_rng(721)
    values = np.empty(shape, dtype="f4")
    for step in range(steps):
        wave = 5 * np.sin(longitude + step / 12)
        values[step] = 250 + 40 * latitude + wave + random.normal(0, 0.3, (rows, columns))
    return np.round(values * 64) / 64


def maps_shape(scale: float) -> tuple[int, int, int]:
    """Return the shape of 480 maps, 0.5 GB, at scale 1; below 0.02 they are coarser."""
    return (max(12, round(480 * scale)), *((361, 720) if scale >= 0.02 else (37, 72)))


def build_maps(path: Path, shape: tuple[int, int, int]) -> str:
    """Write an array ``t2m`` with one map a chunk, a few maps at a time."""
    import zarr

    session = new_repository(path).writable_session("main")
    array = zarr.open_group(session.store, mode="a").create_array(
        "t2m", shape=shape, dtype="f4", chunks=(1, *shape[1:]), dimension_names=DIMS,
        fill_value=0.0,
    )  # fmt: skip
    maps = temperatures((min(120, shape[0]), *shape[1:]))
    for start in range(0, shape[0], len(maps)):
        stop = min(start + len(maps), shape[0])
        array[start:stop] = maps[: stop - start] + np.float32(start % 7)
    session.commit("maps")
    return str(path)


@dataclass(frozen=True, kw_only=True)
class S3Place:
    """The location of a repository in a bucket of a server on this machine."""

    bucket: str
    prefix: str
    endpoint_url: str
    access_key: str
    secret_key: str
    options: dict[str, str]

    @classmethod
    def on(cls, server: S3Server, bucket: str, prefix: str) -> S3Place:
        return cls(
            bucket=bucket,
            prefix=prefix,
            endpoint_url=server.endpoint_url,
            access_key=server.access_key,
            secret_key=server.secret_key,
            options=dict(server.storage_options),
        )

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"


def upload(folder: Path, bucket: Any, prefix: str) -> None:
    """Upload the files of a repository, which do not contain its location, to a bucket."""
    files = [file for file in folder.rglob("*") if file.is_file()]

    def put(file: Path) -> None:
        obstore.put(bucket, f"{prefix}/{file.relative_to(folder)}", file.read_bytes())

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(put, files))


def open_reference_group(place: Path | S3Place | str, group: str = "/") -> Any:
    """Open a group of `main` with the reference library and zarr-python."""
    import zarr

    return zarr.open_group(reference_store(place), path=group, mode="r")


def reference_store(place: Path | S3Place | str) -> Any:
    """Open the Zarr store of `main` with the reference library."""
    import icechunk

    if isinstance(place, S3Place):
        storage = reference_s3_storage(place)
    else:
        storage = icechunk.local_filesystem_storage(str(place))
    return icechunk.Repository.open(storage).readonly_session("main").store


def reference_s3_storage(place: S3Place) -> Any:
    """Return the reference library's storage of a prefix on the server."""
    import icechunk

    return icechunk.s3_storage(
        bucket=place.bucket,
        prefix=place.prefix,
        access_key_id=place.access_key,
        secret_access_key=place.secret_key,
        endpoint_url=place.endpoint_url,
        region="us-east-1",
        allow_http=True,
        force_path_style=True,
    )


def build_tiny_chunks(place: Path | S3Place, chunks: int, width: int) -> None:
    """Write an array ``v`` of so many chunks, one row of ``width`` numbers each.

    The reference describes it, with zarr-python's default compression. This library stores the
    chunks, in few requests: up to 512 bytes go into manifests, larger ones become objects.
    """
    import icechunk
    import zarr
    import zstandard

    from icechunk_format import Repository

    if isinstance(place, S3Place):
        repository = icechunk.Repository.create(reference_s3_storage(place))
    else:
        repository = new_repository(place)
    described = repository.writable_session("main")
    zarr.create_array(
        described.store,
        name="v",
        shape=(chunks, width),
        chunks=(1, width),
        dtype="f4",
        dimension_names=["row", "column"],
    )
    described.commit("an empty array")
    values = np.random.default_rng(chunks).normal(size=(chunks, width)).astype("<f4")
    compressor = zstandard.ZstdCompressor(level=0)
    session = Repository.open(location_of(place)).writable_session("main")
    session.set_chunks(
        "/v",
        np.stack([np.arange(chunks), np.zeros(chunks, dtype="i8")], axis=1),
        [compressor.compress(row) for row in values],
    )
    session.commit("tiny chunks")


def location_of(place: Path | S3Place) -> Location:
    """Return the location of a repository for this library."""
    from icechunk_format import Location

    if isinstance(place, S3Place):
        return Location(place.url, options=place.options)
    return Location(str(place))


def new_repository(path: Path) -> Any:
    import icechunk

    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)))
