"""Reads and writes the Delta table of a copy, with ``deltalake``.

Rules of this file
------------------
1. A version of the table appears by one transaction, which adds and removes files and holds the
   record of the snapshot. A lost race changes nothing.
2. Options of the store are passed on to ``deltalake`` and to nothing else: they may be credentials.
   ``DeltaTarget`` shows the URL alone.
3. ``deltalake`` is imported when it is needed, since it is an extra.
4. All that knows Delta's log is here, reading and committing, so that no other file depends on it.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.fs as pa_fs

from icechunk_format.errors import (
    AlreadyExistsError,
    IcechunkError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from icechunk_format.mirroring.boxes import is_ours
from icechunk_format.mirroring.record import APP_ID, RECORD_KEY, MirrorRecord, parse_record
from icechunk_format.storage.address import parse_url

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

_LOG: Final = "_delta_log"
# Characters that Delta allows in no name of a column, unless tables map names.
_FORBIDDEN: Final = frozenset(" ,;{}()\n\t=")
# How many of the newest versions are looked at, until one has a record.
_MOST_DISCARDED: Final = 1_000
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_LOOKS: Final = (4, 64, 1024, None)


def deltalake() -> ModuleType:
    """Return the package ``deltalake``.

    Raises
    ------
    UnsupportedError
        It is not installed.
    """
    try:
        import deltalake as package
        import deltalake.exceptions
        import deltalake.fs
        import deltalake.transaction
    except ImportError as error:
        raise UnsupportedError(
            f"copies need the package {error.name!r}: pip install 'icechunk-spark[mirror]'",
            package=error.name,
        ) from None
    return package


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    """The place of a Delta table: its URL, and options of its store in ``deltalake``'s words."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, url: str | os.PathLike[str], options: Mapping[str, str] | None = None
    ) -> DeltaTarget:
        """Return the target at a URL or a local path.

        Raises
        ------
        InvalidInputError
            The URL cannot be used, or an option is no text.
        """
        address = parse_url(os.fspath(url))
        if address.kind in ("memory", "http"):
            raise InvalidInputError(
                f"{address.shown_url} cannot hold a Delta table: give a local path or the URL of"
                " an object store",
                target=address.shown_url,
            )
        odd = next((sign for sign in "%\\" if sign in address.url), None)
        if address.kind == "local" and odd is not None:
            raise InvalidInputError(
                f"{address.shown_url} has a {odd}, which deltalake reads as an escape or as the end"
                " of a folder's name: choose a folder without one",
                target=address.shown_url,
            )
        given: dict[Any, Any] = dict(options or {})
        for name, value in given.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidInputError(
                    f"target_options: {name!r} must be a text, as deltalake's storage_options are",
                    option=str(name),
                )
        return cls(address.url, given)

    def __str__(self) -> str:
        return parse_url(self.url).shown_url

    @property
    def is_local(self) -> bool:
        """Whether the table lies in a local folder."""
        return parse_url(self.url).kind == "local"

    def file_system(self) -> pa_fs.FileSystem:
        """Return the folder of the table as a file system; a local folder is created."""
        with self.errors("opening"):
            if self.is_local:
                os.makedirs(self.url, exist_ok=True)
                return pa_fs.SubTreeFileSystem(self.url, pa_fs.LocalFileSystem())
            return pa_fs.PyFileSystem(
                deltalake().fs.DeltaStorageHandler(self.url, options=dict(self.options) or None)
            )

    def open(self, version: int | None = None) -> DeltaTable | None:
        """Open the table, at its newest version by default; None where there is none."""
        package = deltalake()
        if self.is_local and not os.path.isdir(os.path.join(self.url, _LOG)):
            return None
        with self.errors("reading"):
            try:
                table: DeltaTable = package.DeltaTable(
                    self.url, version=version, storage_options=dict(self.options) or None
                )
            except package.exceptions.TableNotFoundError:
                return None
        return table

    def existing(self, version: int | None = None) -> DeltaTable:
        """Open the table, where there has to be one."""
        table = self.open(version)
        if table is None:
            raise self.no_copy()
        return table

    def no_copy(self) -> NotFoundError:
        """Return the error for a place without a copy."""
        return NotFoundError(
            f"there is no copy at {self}: write one with icechunk_spark.mirror(spark, path,"
            " target)",
            target=str(self),
        )

    @contextlib.contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turn errors of ``deltalake`` into ours; values of options are hidden."""
        package = deltalake()
        try:
            yield
        except (package.exceptions.CommitFailedError, package.exceptions.TableNotFoundError):
            raise
        except (package.exceptions.DeltaError, OSError) as error:
            raise StorageError(
                f"{doing} {self} failed: {self.shown(error)}", target=str(self)
            ) from None

    def shown(self, error: BaseException) -> str:
        """Return an error on one line, without the values of options."""
        # deltalake colours its arrows between causes.
        text = " ".join(_COLOURS.sub("", str(error)).replace("↳", "-").split())
        for value in sorted(self.options.values(), key=len, reverse=True):
            if len(value) > 3:
                text = text.replace(value, "***")
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """A version of the table that holds a snapshot."""

    version: int
    record: MirrorRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """The table as a run finds it.

    Attributes
    ----------
    table
        The table at its newest version.
    newest
        The newest version that holds a snapshot.
    names, sizes
        Name and bytes of each file of the newest version.
    changed_by
        Another program's operation on the files after ``newest``; None where there was none.
    """

    table: DeltaTable
    newest: Mirrored
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    changed_by: str | None


def records(target: DeltaTarget, table: DeltaTable) -> Iterator[Mirrored]:
    """Yield the versions of a table that hold a snapshot, newest first.

    Raises
    ------
    FormatError
        A record cannot be read.
    """
    for entry in _history(target, table):
        found = _mirrored(target, entry)
        if found is not None:
            yield found


def _mirrored(target: DeltaTarget, entry: Mapping[str, Any]) -> Mirrored | None:
    """Return what a version holds; None where another program wrote it."""
    if RECORD_KEY not in entry:
        return None
    version = int(entry["version"])
    record = parse_record(entry[RECORD_KEY], target=str(target), version=version)
    return Mirrored(version=version, record=record)


def _history(target: DeltaTarget, table: DeltaTable) -> Iterator[dict[str, Any]]:
    """Yield what is known of each version, newest first; few are read where few are wanted."""
    seen = 0
    for limit in _LOOKS:
        with target.errors("reading the history of"):
            entries = table.history(limit)
        yield from entries[seen:]
        if limit is None or len(entries) < limit:
            return
        seen = len(entries)


def read_state(target: DeltaTarget) -> TargetState | None:
    """Read the table; None where there is none yet.

    Raises
    ------
    AlreadyExistsError
        Something else is there.
    """
    table = target.open()
    if table is None:
        _check_empty(target)
        return None
    changed_by: str | None = None
    newest: Mirrored | None = None
    # A kind of operation that moves no file: they come between ours.
    harmless = ("VACUUM START", "VACUUM END", "ADD FEATURE", "SET TBLPROPERTIES", "FSCK")
    for entry in _history(target, table):
        newest = _mirrored(target, entry)
        if newest is not None:
            break
        operation = str(entry.get("operation", "unknown"))
        if changed_by is None and operation.upper() not in harmless:
            changed_by = operation
    if newest is None:
        raise AlreadyExistsError(
            f"{target} is a Delta table that another program wrote: choose another target",
            target=str(target),
        )
    names, sizes = files_of(target, table)
    return TargetState(table=table, newest=newest, names=names, sizes=sizes, changed_by=changed_by)


def _check_empty(target: DeltaTarget) -> None:
    """Refuse a folder that holds something else than what a killed run left."""
    if target.is_local and os.path.isfile(target.url):
        raise AlreadyExistsError(
            f"{target} is a file: choose an empty folder for the table", target=str(target)
        )
    if target.is_local and not os.path.isdir(target.url):
        return
    with target.errors("listing"):
        try:
            found = target.file_system().get_file_info(
                pa_fs.FileSelector("", recursive=False, allow_not_found=True)
            )
        except FileNotFoundError:
            return
    for info in found:
        name = info.base_name
        if name != _LOG and not is_ours(name.partition("#")[0]):
            raise AlreadyExistsError(
                f"{target} is no Delta table, but {name!r} is there: choose an empty target, since"
                " a vacuum of the table would delete what is no part of it",
                target=str(target),
                found=name,
            )


def files_of(target: DeltaTarget, table: DeltaTable) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return name and bytes of each file of an open version."""
    with target.errors("reading"):
        actions = pa.table(table.get_add_actions(flatten=True))
    return (
        tuple(actions.column("path").to_pylist()),
        tuple(actions.column("size_bytes").to_pylist()),
    )


def delta_schema(columns: pa.Schema) -> pa.Schema:
    """Return the schema of the table, without metadata.

    Raises
    ------
    UnsupportedError
        Delta has no such column.
    """
    for item in columns:
        if _FORBIDDEN & set(item.name):
            raise UnsupportedError(
                f"column {item.name!r} cannot be in a Delta table, whose names hold no blank and"
                " none of ,;{}()=: rename the array, or name the others with option variables",
                column=item.name,
            )
        if pa.types.is_duration(item.type):
            raise UnsupportedError(
                f"column {item.name!r} is a duration, which Delta does not have: name the other"
                " columns with option variables, or copy the numbers with decodeCf=false",
                column=item.name,
            )
    return pa.schema([pa.field(item.name, item.type) for item in columns])


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A version to write: files that come and go, and the record.

    Attributes
    ----------
    added
        Rows of the schema ``ADDED``.
    removed
        Names and sizes of files that go; None where all go and the schema may change.
    """

    schema: pa.Schema
    record: MirrorRecord
    added: pa.Table
    removed: Sequence[tuple[str, int]] | None


def commit(target: DeltaTarget, state: TargetState | None, change: Transaction) -> int | None:
    """Write one version of the table, and return its number; None where another run was faster.

    Raises
    ------
    StorageError
        The store failed. The version may have landed; the next run finds out.
    """
    package = deltalake()
    now = int(time.time() * 1000)
    adds: list[AddAction | RemoveAction] = [
        package.transaction.AddAction(
            path=row["path"],
            size=row["size"],
            partition_values={},
            modification_time=now,
            data_change=True,
            stats=row["stats"],
        )
        for row in change.added.to_pylist()
    ]
    properties = package.CommitProperties(
        custom_metadata={RECORD_KEY: change.record.to_json()},
        app_transactions=[package.Transaction(APP_ID, change.record.number)],
        # A version in between may be another copy: what to do is planned anew.
        max_commit_retries=0,
    )
    schema = package.Schema.from_arrow(change.schema)
    try:
        with target.errors("committing to"):
            if state is None:
                return _create(target, schema, adds, change, properties)
            if change.removed is None:
                _allow_times(state.table, change.schema)
                mode = "overwrite"
            else:
                mode = "append"
                adds += [
                    package.transaction.RemoveAction(
                        path=name,
                        data_change=True,
                        deletion_timestamp=now,
                        size=size,
                        partition_values={},
                    )
                    for name, size in change.removed
                ]
            state.table.create_write_transaction(
                adds, mode=mode, schema=schema, commit_properties=properties
            )
    except package.exceptions.CommitFailedError:
        return None
    # The open table stays at the version before.
    return int(state.table.version()) + 1


def _create(
    target: DeltaTarget, schema: Any, adds: Sequence[Any], change: Transaction, properties: Any
) -> int | None:
    package = deltalake()
    try:
        package.transaction.create_table_with_add_actions(
            target.url,
            schema,
            list(adds),
            mode="error",
            description=f"Copy of {change.record.repository}, branch {change.record.branch}",
            # The log names the snapshot of each version, so it is kept as long as the files are.
            configuration={"delta.enableExpiredLogCleanup": "false"},
            storage_options=dict(target.options) or None,
            commit_properties=properties,
        )
    except package.exceptions.DeltaError:
        if target.open() is None:
            raise
        return None  # another run created it
    return 0


def _allow_times(table: DeltaTable, schema: pa.Schema) -> None:
    """Let a table have times without a zone, where its first schema had none."""
    has_times = any(pa.types.is_timestamp(item.type) and item.type.tz is None for item in schema)
    if has_times and "timestampNtz" not in (table.protocol().writer_features or ()):
        table.alter.add_feature(
            deltalake().TableFeatures.TimestampWithoutTimezone,
            allow_protocol_versions_increase=True,
        )


def discard(target: DeltaTarget, names: Sequence[str]) -> None:
    """Delete files that no version has; what stays goes with the next vacuum."""
    files = target.file_system()
    for name in names[:_MOST_DISCARDED]:
        with contextlib.suppress(OSError, IcechunkError):
            files.delete_file(name)
