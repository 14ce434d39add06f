"""A small repository with a model of its cells in memory, and the rows of a copy of it."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from helpers.grids.weather_repository import group_document

from icechunk_format.options.read import ReadRequest
from icechunk_format.repository import Repository
from icechunk_format.workflows.mirroring import (
    DeltaTarget,
    MirrorRequest,
    Selection,
    bring_up_to_date,
)
from icechunk_format.workflows.running import in_process
from icechunk_format.zarr.data_types import parse_data_type
from icechunk_format.zarr.new_nodes import build_array_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BYTES = [{"name": "bytes", "configuration": {"endian": "little"}}]
DIMS = ("time", "y")
LABEL_CHUNK = 100
UNITS = "hours since 2024-01-01"


def rows_of(target: DeltaTarget, version: int | None = None) -> pa.Table | None:
    """Return the rows of a copy in the order of their labels; None where there is none."""
    table = target.open(version)
    if table is None:
        return None
    return table.to_pyarrow_table().sort_by([("time", "ascending"), ("y", "ascending")])


class Grid:
    """Variables over (time, y) in chunks, and a copy of them beside it.

    Chunks are stored as they are. What a chunk was never written for reads as 0.
    """

    def __init__(
        self,
        folder: Path,
        *,
        shape: tuple[int, int] = (6, 8),
        chunks: tuple[int, int] = (2, 4),
        names: tuple[str, ...] = ("t2m", "wind"),
    ) -> None:
        self.chunks = chunks
        self.place = str(folder / "repository")
        self.target = str(folder / "copy")
        self.repository = Repository.create(self.place)
        self._random = np.random.default_rng(7)
        self.values: dict[str, Any] = {
            "time": np.arange(shape[0], dtype="i8"),
            "y": np.arange(shape[1], dtype="i8") * 10,
        }
        self._codecs = {"time": _BYTES}
        session = self.repository.writable_session()
        session.create_group("/", group_document(title="grid"))
        for name in self.values:
            self._create(session, name)
        for name in names:
            self.add(session, name)
        self.first = str(session.commit("write it").snapshot_id)

    # -- the repository ---------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.values["time"]), len(self.values["y"])

    def document(self, name: str, **more: Any) -> bytes:
        values = self.values[name]
        is_label = values.ndim == 1
        attributes = {"units": UNITS} if name == "time" else {"units": "K", "_FillValue": -1.0}
        if name == "y":
            attributes = {}
        return build_array_metadata(
            shape=values.shape,
            data_type=parse_data_type(values.dtype.name, node_path=f"/{name}"),
            chunk_shape=(LABEL_CHUNK,) if is_label else self.chunks,
            fill_value=0,
            codecs=_BYTES,
            dimension_names=(name,) if is_label else DIMS,
            attributes={**attributes, **more},
            node_path=f"/{name}",
        ).to_bytes()

    def _create(self, session: Any, name: str, path: str | None = None) -> None:
        values = self.values[name]
        steps = (LABEL_CHUNK,) if values.ndim == 1 else self.chunks
        session.create_array(
            path or f"/{name}",
            self.document(name),
            shape=values.shape,
            num_chunks=[-(-n // c) for n, c in zip(values.shape, steps, strict=True)],
            dimension_names=(name,) if values.ndim == 1 else DIMS,
        )
        self.store(session, name)

    def add(self, session: Any, name: str) -> None:
        self.values[name] = self._random.random(self.shape, dtype="f4")
        self._create(session, name)

    def store(self, session: Any, name: str, chunks: Any = None) -> None:
        """Write some chunks of an array from the model; all of them by default."""
        values = self.values[name]
        steps = (LABEL_CHUNK,) if values.ndim == 1 else self.chunks
        counts = [-(-n // c) for n, c in zip(values.shape, steps, strict=True)]
        for place in chunks or itertools.product(*map(range, counts)):
            chunk = np.zeros(steps, dtype=values.dtype)
            box = tuple(slice(i * c, (i + 1) * c) for i, c in zip(place, steps, strict=True))
            part = values[box]
            chunk[tuple(slice(0, n) for n in part.shape)] = part
            session.set_chunk(f"/{name}", place, chunk.tobytes())

    @contextmanager
    def edited(self, message: str) -> Iterator[Any]:
        """Commit what a block changes in a session."""
        session = self.repository.writable_session()
        yield session
        session.commit(message)

    def change(self, name: str, *places: tuple[int, int], message: str = "change") -> str:
        """Write new values to some chunks."""
        session = self.repository.writable_session()
        for place in places:
            box = tuple(slice(i * c, (i + 1) * c) for i, c in zip(place, self.chunks, strict=True))
            self.values[name][box] = self._random.random(self.values[name][box].shape, "f4")
        self.store(session, name, places)
        return str(session.commit(message).snapshot_id)

    def resize(self, session: Any, times: int) -> None:
        """Give the arrays another length; new cells are 0, and labels go on."""
        for name, values in self.values.items():
            if name == "y":
                continue
            kept = values[:times]
            if name == "time":
                new = np.arange(len(kept), times, dtype=values.dtype)
            else:
                new = np.zeros((times - len(kept), values.shape[1]), dtype=values.dtype)
            self.values[name] = np.concatenate([kept, new])
            steps = (LABEL_CHUNK,) if values.ndim == 1 else self.chunks
            shape = self.values[name].shape
            session.update_metadata(
                f"/{name}",
                self.document(name),
                shape=shape,
                num_chunks=[-(-n // c) for n, c in zip(shape, steps, strict=True)],
            )
        self.store(session, "time")

    def append(self, times: int) -> str:
        """Add times with values to the end."""
        before = self.shape[0]
        session = self.repository.writable_session()
        self.resize(session, before + times)
        for name, values in self.values.items():
            if values.ndim == 2:
                values[before:] = self._random.random(values[before:].shape, "f4")
                first = before // self.chunks[0]
                rows = range(first, -(-self.shape[0] // self.chunks[0]))
                columns = range(-(-self.shape[1] // self.chunks[1]))
                self.store(session, name, list(itertools.product(rows, columns)))
        return str(session.commit("append").snapshot_id)

    # -- the copy ---------------------------------------------------------------------------

    def request(self, *, branch: str = "main", **arguments: Any) -> MirrorRequest:
        ours = ("every_snapshot", "full", "dry_run")
        known = {n: arguments.pop(n) for n in ours if n in arguments}
        return MirrorRequest(
            read=ReadRequest(path=self.place),
            target=DeltaTarget.of(self.target),
            selection=Selection.of(
                {name.replace("__", "."): value for name, value in arguments.items()}
            ),
            branch=branch,
            **known,
        )

    def mirror(self, run: Any = in_process, **arguments: Any) -> Any:
        return bring_up_to_date(self.request(**arguments), run)

    def rows(self, *names: str) -> pa.Table:
        """Return the rows that the newest snapshot has, in the order of their labels."""
        names = names or tuple(name for name in self.values if name not in DIMS)
        time, y = np.meshgrid(self.values["time"], self.values["y"], indexing="ij")
        hours = time.reshape(-1).astype("timedelta64[h]") + np.datetime64("2024-01-01")
        columns = {"time": pa.array(hours.astype("datetime64[us]")), "y": pa.array(y.reshape(-1))}
        columns |= {name: pa.array(self.values[name].reshape(-1)) for name in names}
        return pa.table(columns).sort_by([("time", "ascending"), ("y", "ascending")])

    def copied(self, version: int | None = None) -> pa.Table:
        """Return the rows of a version of the copy, in the order of their labels."""
        found = rows_of(DeltaTarget.of(self.target), version)
        assert found is not None
        return found

    def assert_copied(self, *names: str) -> None:
        """Check the newest version, cell by cell."""
        expected, found = self.rows(*names), self.copied()
        assert found.schema.names == expected.schema.names
        assert found.schema.types == expected.schema.types
        assert found.equals(expected)
