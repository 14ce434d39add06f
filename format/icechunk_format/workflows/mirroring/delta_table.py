"""Opens the Delta table of a copy with ``deltalake``, and reads the records of its versions.

Rules of this file
------------------
1. Storage options may be credentials: they are passed to ``deltalake`` only, and ``DeltaTarget``
   shows only the URL.
2. ``deltalake`` is an optional dependency, so it is imported in functions.
3. Only this file and ``transaction`` access Delta's log.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.fs as pa_fs

from icechunk_format.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from icechunk_format.storage.address import parse_url
from icechunk_format.workflows.mirroring.boxes import is_file_name
from icechunk_format.workflows.mirroring.record import RECORD_KEY, MirrorRecord, parse_record

if TYPE_CHECKING:
    from deltalake import DeltaTable

_LOG: Final = "_delta_log"
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
# Numbers of history entries to read, tried in this order until a version has a record.
_HISTORY_LIMITS: Final = (4, 64, 1024, None)


def deltalake() -> ModuleType:
    """Return the package ``deltalake``, or raise UnsupportedError if it is not installed."""
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


def _needs_plain_http(options: Mapping[str, str]) -> bool:
    """Return True if the endpoint of S3 has no TLS, which deltalake accepts only with a setting.

    The endpoint is that of the options, or of the environment, as for repositories.
    """
    given = {name.lower().removeprefix("aws_"): value for name, value in options.items()}
    variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    endpoints = [given.get("endpoint_url"), given.get("endpoint"), *map(os.environ.get, variables)]
    endpoint = next(filter(None, endpoints), "")
    return endpoint.startswith("http://") and "allow_http" not in given


@dataclass(frozen=True, slots=True)
class DeltaTarget:
    """The location of a Delta table: a URL and the ``storage_options`` of ``deltalake``."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, url: str | os.PathLike[str], options: Mapping[str, str] | None = None
    ) -> DeltaTarget:
        """Parse a URL or a local path; raise InvalidInputError for other locations."""
        address = parse_url(os.fspath(url))
        if address.kind in ("memory", "http"):
            raise InvalidInputError(
                f"{address.shown_url} cannot hold a Delta table: give a local path or the URL of"
                " an object store",
                target=address.shown_url,
            )
        if (
            not address.url.isprintable()
            and address.url.encode(errors="replace").decode() != address.url
        ):
            raise InvalidInputError(
                f"{address.shown_url} is not UTF-8, which deltalake needs: choose another folder",
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
                    f"target_options: {name!r} must be a string", option=str(name)
                )
        if address.kind == "s3" and _needs_plain_http(given):
            given["AWS_ALLOW_HTTP"] = "true"
        return cls(address.url, given)

    def __str__(self) -> str:
        return parse_url(self.url).shown_url

    @property
    def is_local(self) -> bool:
        """Return True if the table is in a local folder."""
        return parse_url(self.url).kind == "local"

    def file_system(self) -> pa_fs.FileSystem:
        """Return the folder of the table as a file system; create it if it is local."""
        with self.errors("opening"):
            if self.is_local:
                os.makedirs(self.url, exist_ok=True)
                return pa_fs.SubTreeFileSystem(self.url, pa_fs.LocalFileSystem())
            return pa_fs.PyFileSystem(
                deltalake().fs.DeltaStorageHandler(self.url, options=dict(self.options) or None)
            )

    def open(self, version: int | None = None) -> DeltaTable | None:
        """Open the table, by default at its newest version; None if it does not exist."""
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
        """Open the table; raise NotFoundError if it does not exist."""
        table = self.open(version)
        if table is None:
            raise self.no_copy()
        return table

    def no_copy(self) -> NotFoundError:
        """Return the error for a table that does not exist or has no record."""
        return NotFoundError(
            f"there is no copy at {self}: write one with icechunk_spark.mirror(spark, path,"
            " target)",
            target=str(self),
        )

    @contextlib.contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Convert errors of ``deltalake`` to StorageError, without values of options."""
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
        """Format an error on one line, without the values of options."""
        # deltalake puts coloured arrows between causes.
        message = " ".join(_COLOURS.sub("", str(error)).replace("↳", "-").split())
        for value in sorted(self.options.values(), key=len, reverse=True):
            if len(value) > 3:
                message = message.replace(value, "***")
        return message


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """A version of the table with the record of its snapshot."""

    version: int
    record: MirrorRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The table at its newest version."""

    table: DeltaTable
    newest: Mirrored
    """The newest version with a record."""
    files: Mapping[str, int]
    """The size of each file."""
    changed_by: str | None
    """An operation of another program that changed files after ``newest``, or None."""


def records(target: DeltaTarget, table: DeltaTable) -> Iterator[Mirrored]:
    """Yield the versions of a table with a record, newest first."""
    for entry in _history(target, table):
        found = _mirrored(target, entry)
        if found is not None:
            yield found


def _mirrored(target: DeltaTarget, entry: Mapping[str, Any]) -> Mirrored | None:
    """Return the record of a version; None if another program wrote the version."""
    if RECORD_KEY not in entry:
        return None
    version = int(entry["version"])
    record = parse_record(entry[RECORD_KEY], target=str(target), version=version)
    return Mirrored(version=version, record=record)


def _history(target: DeltaTarget, table: DeltaTable) -> Iterator[dict[str, Any]]:
    """Yield the entries of the history, newest first, read on demand."""
    seen = 0
    for limit in _HISTORY_LIMITS:
        with target.errors("reading the history of"):
            entries = table.history(limit)
        yield from entries[seen:]
        if limit is None or len(entries) < limit:
            return
        seen = len(entries)


def read_state(target: DeltaTarget) -> TableState | None:
    """Read the state of the table; None if it does not exist.

    Raises
    ------
    AlreadyExistsError
        The target is not empty and not a copy.
    """
    table = target.open()
    if table is None:
        _check_empty(target)
        return None
    changed_by: str | None = None
    newest: Mirrored | None = None
    # Operations that change no file.
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
    files = files_of(target, table)
    return TableState(table=table, newest=newest, files=files, changed_by=changed_by)


def _check_empty(target: DeltaTarget) -> None:
    """Raise AlreadyExistsError if a folder contains files other than those of a killed run."""
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
        if name != _LOG and not is_file_name(name.partition("#")[0]):
            raise AlreadyExistsError(
                f"{target} contains {name!r} and is not a Delta table: choose an empty folder,"
                " since a vacuum of the table would delete other files",
                target=str(target),
                found=name,
            )


def files_of(target: DeltaTarget, table: DeltaTable) -> dict[str, int]:
    """Return the size of each file of an open version."""
    with target.errors("reading"):
        actions = pa.table(table.get_add_actions(flatten=True))
    names, sizes = (actions.column(name).to_pylist() for name in ("path", "size_bytes"))
    return dict(zip(names, sizes, strict=True))
