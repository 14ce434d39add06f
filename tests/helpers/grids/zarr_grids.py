"""Arrays of a repository as zarr-python reads them, grouped into the tables that Spark makes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from helpers.spark.session import by_source

import icechunk_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from helpers.reference.repositories import ReferenceRepository
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The arrays of one group that share their dimensions, as zarr-python reads them."""

    group: str
    labels: dict[str, np.ndarray]
    arrays: dict[str, zarr.Array]
    is_only_one: bool
    """Whether a reader who names neither group nor variables gets these."""

    @property
    def values(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(array[...]) for name, array in self.arrays.items()}

    @property
    def options(self) -> dict[str, str]:
        """What a reader has to say to get these arrays."""
        if self.is_only_one:
            return {}
        return {"group": self.group, "variables": ",".join(self.arrays)}


def dims_of(array: zarr.Array) -> tuple[str, ...]:
    """Return the names of the dimensions; those without one are numbered."""
    names = array.metadata.dimension_names or (None,) * array.ndim
    return tuple(name or f"dim_{axis}" for axis, name in enumerate(names))


def groups_of(store: Any) -> dict[str, dict[str, zarr.Array]]:
    """Return the arrays of each group that has some, sorted by name."""
    try:
        root = zarr.open_group(store, mode="r")
    except FileNotFoundError:
        return {}
    found: dict[str, dict[str, zarr.Array]] = {}
    for path, array in sorted(root.members(max_depth=None)):
        if isinstance(array, zarr.Array):
            group, _, name = path.rpartition("/")
            found.setdefault("/" + group, {})[name] = array
    return found


def grids_of(store: Any) -> Iterator[Grid]:
    """Return the tables that a store holds: arrays of one group on the same dimensions."""
    groups = groups_of(store)
    for group, arrays in groups.items():
        sets: dict[tuple[tuple[str, int], ...], dict[str, zarr.Array]] = {}
        for name, array in arrays.items():
            if dims_of(array) != (name,):
                key = tuple(zip(dims_of(array), array.shape, strict=True))
                sets.setdefault(key, {})[name] = array
        for dimensions, members in sets.items():
            yield Grid(
                group=group,
                labels={
                    dim: np.asarray(arrays[dim][...]) if dim in arrays else np.arange(size)
                    for dim, size in dimensions
                },
                arrays=members,
                is_only_one=len(sets) == 1 and len(groups) == 1,
            )


def load(
    spark: SparkSession, reference: ReferenceRepository, layout: str = "cells", **options: Any
) -> DataFrame:
    """Read one layout of a repository with Spark, its virtual chunks authorized."""
    if layout != "refs" and reference.virtual_prefixes:
        options["virtual.authorize"] = ",".join(reference.virtual_prefixes)
    return by_source(spark).load(reference.url, layout=layout, **options)


def load_by_function(
    spark: SparkSession, reference: ReferenceRepository, **options: Any
) -> DataFrame:
    """Read the cells of a repository with `icechunk_spark.read`."""
    return icechunk_spark.read(spark, reference.url, **options)


def at_once(action: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Do something for each item in a few threads: small Spark jobs wait more than they work."""
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(action, items):
            pass
