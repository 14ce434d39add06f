"""Records the format and the options that a user gives to Spark's reader or writer.

Spark keeps them in the JVM, where Python cannot read them again.

Rules of this file
------------------
1. Every call is passed on to Spark unchanged, since the user may set another format later.
2. As in Spark, option names ignore case, the later of two values applies, and None leaves an option
   unset.
"""

from __future__ import annotations

from typing import Any, Final

from icechunk_format.errors import UnsupportedError
from icechunk_format.options.keywords import option_strings

_FORMAT: Final = "icechunk"


class NotedOptions:
    """Mixin for Spark's `DataFrameReader` and `DataFrameWriter` that records format and options."""

    _icechunk_format: str | None = None
    _icechunk_options: dict[str, Any]

    def format(self, source: str) -> Any:
        """Record the format, and pass it to Spark."""
        self._icechunk_format = source
        return super().format(source)  # type: ignore[misc]

    def option(self, key: str, value: Any) -> Any:
        """Record an option, and pass it to Spark."""
        self._note({key: value})
        return super().option(key, value)  # type: ignore[misc]

    def options(self, **options: Any) -> Any:
        """Record several options, and pass them to Spark."""
        self._note(options)
        return super().options(**options)  # type: ignore[misc]

    def _note(self, options: dict[str, Any]) -> None:
        for name, value in options.items():
            if value is not None:
                noted = self._icechunk_options.items()
                kept = {key: old for key, old in noted if key.lower() != name.lower()}
                self._icechunk_options = {**kept, name: value}

    def _is_ours(self, source: str | None = None) -> bool:
        chosen = source if source is not None else self._icechunk_format
        return chosen is not None and chosen.strip().lower() == _FORMAT


class NotedWrite(NotedOptions):
    """Mixin for Spark's writers that also records partition columns, which arrays do not have."""

    _icechunk_frame: Any
    _icechunk_refused: str | None = None

    def partitionBy(self, *columns: Any) -> Any:
        """Record that partitions were requested, and pass them to Spark."""
        self._icechunk_refused = "partitionBy"
        return super().partitionBy(*columns)  # type: ignore[misc]

    def _icechunk_texts(self, path: str | None, partition_by: Any) -> dict[str, Any]:
        """Return path and options as strings; refuse recorded partitions and buckets."""
        refused = "partitionBy" if partition_by is not None else self._icechunk_refused
        if refused is not None:
            raise UnsupportedError(
                f"{refused} does not apply to arrays: leave it out, and set the chunk shape,"
                " as in .option('chunks', 'time=24,latitude=180')",
                method=refused,
            )
        self._note({"path": path})
        return option_strings(self._icechunk_options)


class CatalogWrite(NotedOptions):
    """Mixin for Spark's `DataFrameWriterV2`, which creates tables of the catalog."""

    def using(self, provider: str) -> Any:
        """Pass the provider to Spark; refuse icechunk before Spark creates or drops a table."""
        if self._is_ours(provider):
            raise catalog_refused("writeTo")
        return super().using(provider)  # type: ignore[misc]


def catalog_refused(method: str) -> UnsupportedError:
    """Return the error of a write to a catalog table."""
    return UnsupportedError(
        f"{method} needs a catalog table, and Spark drops the options of catalog tables of Python"
        " sources, including the path: use df.write.format('icechunk').mode('append').save(path)",
        method=method,
    )


_MADE: Final[dict[tuple[type, type], type]] = {}


def noting(made: Any, mixin: type[NotedOptions]) -> Any:
    """Add `mixin` to the class of `made`, a new reader or writer of Spark; return `made`."""
    base = type(made)
    if (mixin, base) not in _MADE:
        _MADE[mixin, base] = type(base.__name__, (mixin, base), {"__doc__": base.__doc__})
    made.__class__ = _MADE[mixin, base]
    made._icechunk_options = {}
    return made
