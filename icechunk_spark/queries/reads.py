"""Keeps the reads whose DataFrames may still be queried, so that a query can plan them again.

Rules of this file
------------------
1. A read is kept as long as the JVM holds its plan: the rule watches its function, and the ids of
   those that were dropped are collected when the next read is made. As a second bound, only the
   newest reads are kept; older ones then read all rows.
2. Opened repositories are kept open, the last used ones only; others are opened again at the same
   snapshot.
3. Options may hold credentials. They stay in this process, in no message and no plan. A table with
   named credentials is opened again when their settings change.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from icechunk_format.options.location import location_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from icechunk_format.errors import IcechunkError
    from icechunk_format.options.read import ReadRequest
    from icechunk_format.storage.location import Location
    from icechunk_format.tables import Selection
    from icechunk_spark.reading.plan import MetadataRead, OpenedTable

_MOST_READS: Final = 20_000
_MOST_OPEN: Final = 32
# Plans of earlier queries that a read keeps: dashboards repeat their queries.
_MOST_PLANS: Final = 16


@dataclass(slots=True, eq=False)
class Opened:
    """An opened table at its snapshot, with what its queries looked up."""

    table: OpenedTable | MetadataRead
    labels: dict[str, pa.Array | range] = field(default_factory=dict)
    bases: dict[str, Selection] = field(default_factory=dict)
    """The selection of the options, by time zone."""
    plans: OrderedDict[Any, DataFrame] = field(default_factory=OrderedDict)
    """DataFrames of earlier queries, by condition, columns and limit."""
    location: Location | None = None
    """The location with the settings of named credentials at the time of opening."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        options = self.table.options
        if options.credentials is not None:
            self.location = location_of(options)

    @property
    def has_old_credentials(self) -> bool:
        """Return True if the settings of its credentials are no longer the current ones."""
        return self.location is not None and self.location != location_of(self.table.options)

    def plan(self, key: Any, make: Callable[[], DataFrame]) -> DataFrame:
        """Return the DataFrame of a key, so that equal reads of one query are one exchange."""
        with self._lock:
            found = self.plans.get(key)
            if found is not None:
                self.plans.move_to_end(key)
                return found
        made = make()
        with self._lock:
            found = self.plans.setdefault(key, made)
            while len(self.plans) > _MOST_PLANS:
                self.plans.popitem(last=False)
        return found


@dataclass(slots=True, eq=False, kw_only=True)
class Read:
    """A read that queries plan again.

    Attributes
    ----------
    name
        The name of the read in plans and in counts of tasks.
    tasks
        The number of tasks of the whole read.
    is_fresh
        True for a view, which reads the newest snapshot at each query.
    """

    spark: SparkSession
    options: ReadRequest
    name: str
    columns: StructType
    snapshot: str
    tasks: int
    since: str | None = None
    """The pinned start of changes."""
    time_zone: str | None = None
    """The zone of the option ``where``."""
    is_fresh: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)
    newest: OrderedDict[int, Opened | IcechunkError] = field(default_factory=OrderedDict)
    """The opened table of a view, or the error, by number of query."""


class Reads:
    """The reads of this process, by id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reads: OrderedDict[str, Read] = OrderedDict()
        self._open: OrderedDict[str, Opened] = OrderedDict()
        self._numbers = itertools.count(1)
        self._token = secrets.token_hex(4)

    def __len__(self) -> int:
        """Return the number of reads that are kept."""
        return len(self._reads)

    def new_id(self) -> str:
        """Return an id that no other read has, in this process or in another."""
        return f"{self._token}-{next(self._numbers)}"

    def add(self, id: str, read: Read, opened: Opened | None = None) -> None:
        """Keep a read under an id."""
        with self._lock:
            self._reads[id] = read
            if opened is not None:
                self._open[id] = opened
            while len(self._reads) > _MOST_READS:
                self._open.pop(self._reads.popitem(last=False)[0], None)
            self._bound()

    def get(self, id: str) -> Read | None:
        """Return a read, if it is kept."""
        with self._lock:
            found = self._reads.get(id)
            if found is not None:
                self._reads.move_to_end(id)
            return found

    def opened(self, id: str, open_table: Callable[[], Opened]) -> Opened:
        """Return the opened table of a read; open it if it was closed."""
        with self._lock:
            found = self._open.get(id)
            if found is not None:
                self._open.move_to_end(id)
                return found
        found = open_table()
        with self._lock:
            self._open[id] = found
            self._bound()
        return found

    def keep_open(self, id: str, opened: Opened) -> None:
        """Replace the opened table of a read."""
        with self._lock:
            self._open[id] = opened
            self._bound()

    def drop(self, ids: list[str]) -> None:
        """Forget reads."""
        with self._lock:
            for id in ids:
                self._reads.pop(id, None)
                self._open.pop(id, None)

    def clear(self) -> None:
        """Forget all reads, as after the end of a SparkContext."""
        with self._lock:
            self._reads.clear()
            self._open.clear()

    def _bound(self) -> None:
        while len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)


READS: Final = Reads()
