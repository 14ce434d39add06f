"""Every function that writes, as a call on a small world, without Spark.

A world is a folder of a file system or of a bucket: ``repository`` with two branches, a tag and
garbage, and what other calls write beside it. A call changes it; ``prepared`` says what it needs
before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from icechunk_format import Repository
from icechunk_format.errors import NotFoundError
from icechunk_format.maintenance import collect_garbage, copy, rewrite_manifests
from icechunk_format.options.read import ReadRequest
from icechunk_format.options.write import WriteOptions
from icechunk_format.storage.location import Location
from icechunk_format.tables import open_dataset
from icechunk_format.tables.writing.in_process import write_table
from icechunk_format.workflows.deleting import DeleteRequest, delete_selected
from icechunk_format.workflows.mapping import BlocksRequest, MapRequest, map_over_blocks
from icechunk_format.workflows.mirroring import (
    DeltaTarget,
    MirrorRequest,
    Selection,
    bring_up_to_date,
)
from icechunk_format.workflows.rechunking import RechunkRequest, one_process, rechunk_arrays
from icechunk_format.workflows.reducing import ReduceRequest, reduce_arrays
from icechunk_format.workflows.reducing import one_process as one_reducing_process
from icechunk_format.workflows.running import in_process
from icechunk_format.workflows.virtualizing import Archive, virtualize_files
from icechunk_format.workflows.virtualizing.planning.copies import Copying
from icechunk_spark.mapping.datasets import DatasetFunction

LABELS = (0, 2, 4, 6, 8, 10)
# Labels of x, those of a chunk, and the size up to which chunks are inline. Chunks of wide arrays
# are objects in repositories with default settings as well.
SIZES = {"native": (3, 2, 28), "inline": (3, 2, 512), "wide": (70, 40, 100)}


@dataclass(frozen=True)
class World:
    """A place for repositories; `folder` is a local one for files that are no repository."""

    url: str
    folder: str
    spec_version: int = 2
    options: Mapping[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    """Ids and instants that the preparation notes."""
    chunks: str = "native"
    """A key of `SIZES`."""

    @property
    def files(self) -> str:
        """A folder of files that the world only refers to: it is not brought back."""
        return f"{self.folder}-files"

    @property
    def cutoff(self) -> datetime:
        """The time before which garbage is collected; buckets do not keep the times of objects."""
        end: datetime = self.facts["end"]
        return soon() if self.options else end

    def at(self, name: str = "repository") -> Location:
        return Location(f"{self.url}/{name}", options=self.options)

    def open(self, name: str = "repository") -> Repository:
        return Repository.open(self.at(name))

    def read(self, name: str = "repository", **more: Any) -> ReadRequest:
        place = {"path": f"{self.url}/{name}", "storage_options": self.options}
        return ReadRequest(**place, **more)

    def write(
        self, labels: Any, value: float, name: str = "repository",
        variables: Any = ("u", "v"), xs: Any = None, **options: Any,
    ) -> Any:  # fmt: skip
        """Write cells whose values say label, position and `value`."""
        xs = xs or tuple(map(float, range(SIZES[self.chunks][0])))
        cells = [(t, x) for t in labels for x in xs]
        columns = {"t": pa.array([t for t, _ in cells], pa.int64())}
        columns["x"] = pa.array([x for _, x in cells], pa.float64())
        for number, variable in enumerate(variables):
            values = [t * 1000.0 + x * 100 + number * 10 + value for t, x in cells]
            columns[variable] = pa.array(values, pa.float64())
        known = {"mode": "append", "dims": ("t", "x"), "spec_version": self.spec_version}
        return write_table(self.at(name), pa.table(columns), WriteOptions(**known | options))


def build(world: World) -> None:
    """Make the standard repository: three versions, a branch that parted, tags and garbage."""
    repository = Repository.create(world.at(), spec_version=world.spec_version)
    facts = world.facts
    _, along_x, inline = SIZES[world.chunks]
    repository.update_config({"inline_chunk_threshold_bytes": inline})
    world.write(LABELS[:4], 0.5, mode="overwrite", chunks={"t": 2, "x": along_x})
    facts["first"] = str(repository.resolve())
    repository.create_tag("old", facts["first"])
    repository.create_branch("dev", facts["first"])
    repository.create_branch("gone", facts["first"])
    world.write(LABELS[:1], 0.75, branch="gone")
    facts["garbage"] = str(repository.resolve(branch="gone"))
    repository.delete_branch("gone")
    world.write((2,), 0.25, branch="dev", variables=("u",), xs=(0.0, 1.0))
    facts["dev"] = str(repository.resolve(branch="dev"))
    world.write(LABELS[4:], 0.5)
    repository.create_branch("behind", facts["first"])
    facts["second"] = str(repository.resolve())
    repository.set_attributes("/u", {"note": "first"})
    time.sleep(0.01)
    facts["end"] = datetime.now(UTC)
    time.sleep(0.01)


def soon() -> datetime:
    """Return a cutoff that protects nothing."""
    return datetime.now(UTC) + timedelta(seconds=5)


@dataclass(frozen=True)
class Call:
    """A function that writes.

    Attributes
    ----------
    act
        Makes the call.
    prepare
        What the world needs beside the standard repository.
    versions
        The spec versions that have it.
    steps
        True if it is not one change: a repository that it creates may be there without its commit,
        and each ref changes for itself.
    alone
        True if it must run alone, or writes elsewhere than all others: no partner of others.
    """

    act: Callable[[World], object]
    prepare: Callable[[World], object] = lambda world: None
    versions: tuple[int, ...] = (1, 2)
    steps: bool = False
    alone: bool = False


def stream_batch(world: World) -> Any:
    return world.write((12, 14), 0.5, txn_app_id="stream", txn_version=7)


def write_chunks(world: World) -> Any:
    variable = open_dataset(world.open(), world.open().resolve(), None).variables.get("u")
    if variable is None:
        raise NotFoundError("there is no array u")
    box = variable.metadata.fill_array(variable.metadata.grid.full_chunk_shape((1, 0)))
    payload = (box + 1.0).astype("<f8").tobytes()
    rows = pa.table({
        "array": pa.array(["/u"]),
        "chunk": pa.array([[1, 0]], pa.list_(pa.int64())),
        "data": pa.array([payload], pa.binary()),
    })  # fmt: skip
    return write_table(world.at(), rows, WriteOptions(mode="append", layout="chunks"))


def delete(world: World, where: str, **more: Any) -> Any:
    request = DeleteRequest(
        read=world.read(branch="main", where=where, **more),
        options=WriteOptions(mode="append", branch="main"),
    )
    return delete_selected(request, in_process)


def rechunk(world: World, to: str = "repository", **more: Any) -> Any:
    request = RechunkRequest(
        read=world.read(branch="main", **more),
        target=world.at(to),
        options=WriteOptions(mode="append", branch="main", spec_version=world.spec_version),
        chunks={"t": 3},
        shards=None,
        encoding={},
        memory=1 << 26,
    )
    return rechunk_arrays(request, one_process, cores=None, dry_run=False)


def kelvin(dataset: Any) -> Any:
    return dataset[["u"]] + 273.15


def map_blocks(world: World) -> Any:
    request = MapRequest(
        source=BlocksRequest(
            read=world.read(), blocks={"t": 2}, periodic=(), others=[], overlap=None
        ),
        target=world.at("mapped"),
        options=WriteOptions(spec_version=world.spec_version),
        chunks={},
        encoding={},
        skips_errors=False,
        template=None,
        follow=True,
    )
    return map_over_blocks(request, DatasetFunction(function=kelvin), in_process)


def reduce(world: World) -> Any:
    request = ReduceRequest(
        read=world.read(),
        statistics={"u": ["mean", "max"]},
        over=("x",),
        target=world.at("reduced"),
        options=WriteOptions(spec_version=world.spec_version),
        memory=1 << 26,
        follow=True,
    )
    return reduce_arrays(request, one_reducing_process, cores=None, dry_run=False)


def mirror(world: World, **more: Any) -> Any:
    request = MirrorRequest(
        read=world.read(),
        target=DeltaTarget.of(f"{world.folder}/table"),
        selection=Selection.of({}),
        branch="main",
        **more,
    )
    return bring_up_to_date(request, in_process)


def virtualize(world: World, count: int, *, copies: bool = True) -> Any:
    archive = Archive(
        location=world.at("archive"),
        names=[f"{world.files}/{number}.nc" for number in range(count)],
        options=WriteOptions(mode="append", layout="refs", spec_version=world.spec_version),
        dims=("time",),
        copying=Copying(which="all") if copies else None,
    )
    return virtualize_files(archive, in_process, cores=1)


def archive(world: World) -> None:
    from helpers.archives.files import archive as files

    files(Path(world.files), count=2)


def amend(world: World) -> Any:
    session = world.open().writable_session()
    session.set_attributes("/", {"title": "amended"})
    return session.amend("amended")


def twice(call: Callable[[World], object]) -> Callable[[World], object]:
    """Prepare by a first run, and a change of the source."""

    def prepare(world: World) -> None:
        call(world)
        world.write((12,), 0.5)

    return prepare


CALLS: dict[str, Call] = {
    "write append": Call(lambda w: w.write((12, 14), 0.5)),
    "write corrections": Call(lambda w: w.write((2, 8), 0.625)),
    "write between labels": Call(lambda w: w.write((3,), 0.5)),
    "write overwrite": Call(lambda w: w.write((0, 1), 0.5, mode="overwrite")),
    "write replaceWhere": Call(
        lambda w: w.write((4,), 0.875, mode="overwrite", replace_where="t >= 4 AND t < 7")
    ),
    "write another variable": Call(
        lambda w: w.write((0, 4), 0.5, variables=("w",), merge_schema=True)
    ),
    "write a new repository": Call(
        lambda w: w.write(LABELS, 0.5, name="new", mode="errorifexists"), steps=True
    ),
    "write chunks": Call(write_chunks),
    "batch of a stream": Call(stream_batch),
    "delete labels": Call(lambda w: delete(w, "t = 4")),
    "delete last labels": Call(lambda w: delete(w, "t >= 8")),
    "delete cells": Call(lambda w: delete(w, "t = 4", variables=("v",))),
    "merge": Call(lambda w: w.open().merge("dev")),
    "cherry_pick": Call(lambda w: w.open().cherry_pick(w.facts["dev"], "main")),
    "rechunk": Call(lambda w: rechunk(w, variables=("v",))),
    "rechunk elsewhere": Call(lambda w: rechunk(w, "rechunked"), steps=True),
    "map_blocks": Call(map_blocks, steps=True),
    "map_blocks again": Call(map_blocks, twice(map_blocks)),
    "reduce": Call(reduce, steps=True),
    "reduce again": Call(reduce, twice(reduce)),
    "virtualize": Call(lambda w: virtualize(w, 2, copies=False), archive, steps=True),
    "virtualize with copies": Call(lambda w: virtualize(w, 2), archive, steps=True),
    "virtualize more files": Call(
        lambda w: virtualize(w, 2), lambda w: (archive(w), virtualize(w, 1))
    ),
    "mirror": Call(mirror, alone=True),
    "mirror again": Call(mirror, twice(mirror), alone=True),
    "expire_snapshots": Call(lambda w: w.open().expire_snapshots(w.facts["end"]), steps=True),
    "collect_garbage": Call(lambda w: collect_garbage(w.at(), w.cutoff)),
    "rewrite_manifests": Call(lambda w: rewrite_manifests(w.at())),
    "copy": Call(lambda w: copy(w.at(), w.at("copied")), steps=True),
    "copy again": Call(
        lambda w: copy(w.at(), w.at("copied")), twice(lambda w: copy(w.at(), w.at("copied")))
    ),
    "upgrade": Call(lambda w: w.open().upgrade(), versions=(1,), alone=True),
    "restore": Call(lambda w: w.open().restore("main", w.facts["first"])),
    "reset_branch": Call(lambda w: w.open().reset_branch("main", w.facts["first"])),
    "fast_forward": Call(lambda w: w.open().fast_forward("behind", "main")),
    "set_attributes": Call(lambda w: w.open().set_attributes("/u", {"units": "degC"})),
    "rename": Call(lambda w: w.open().rename("/u", "/renamed"), versions=(2,)),
    "drop": Call(lambda w: w.open().drop("/v")),
    "amend": Call(amend, versions=(2,)),
    "create_branch": Call(lambda w: w.open().create_branch("new", w.facts["garbage"])),
    "delete_branch": Call(lambda w: w.open().delete_branch("behind")),
    "create_tag": Call(lambda w: w.open().create_tag("new", w.facts["garbage"])),
    "delete_tag": Call(lambda w: w.open().delete_tag("old")),
    "update_config": Call(lambda w: w.open().update_config({"inline_chunk_threshold_bytes": 77})),
    "create": Call(
        lambda w: Repository.create(w.at("created"), spec_version=w.spec_version)
    ),
}  # fmt: skip
