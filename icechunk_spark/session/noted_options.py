"""Notes format and options on their way to Spark's reader or writer, which keep them in the JVM.

Rules of this file
------------------
1. Every call goes on to Spark unchanged, since the load or save may turn out to be Spark's.
2. As in Spark, the name of an option ignores case, the later of two values counts, and None counts
   as not given.
"""

from __future__ import annotations

from typing import Any, Final

_FORMAT: Final = "icechunk"


class NotedOptions:
    """Mixed into Spark's `DataFrameReader` and `DataFrameWriter` by `noting`."""

    _icechunk_format: str | None = None
    _icechunk_options: dict[str, Any]

    def format(self, source: str) -> Any:
        """Note the format, and tell Spark."""
        self._icechunk_format = source
        return super().format(source)  # type: ignore[misc]

    def option(self, key: str, value: Any) -> Any:
        """Note an option, and tell Spark."""
        self._note({key: value})
        return super().option(key, value)  # type: ignore[misc]

    def options(self, **options: Any) -> Any:
        """Note several options, and tell Spark."""
        self._note(options)
        return super().options(**options)  # type: ignore[misc]

    def _note(self, options: dict[str, Any]) -> None:
        self._icechunk_options |= {
            name.lower(): value for name, value in options.items() if value is not None
        }

    def _is_ours(self, source: str | None = None) -> bool:
        chosen = source if source is not None else self._icechunk_format
        return chosen is not None and chosen.strip().lower() == _FORMAT


_MADE: Final[dict[tuple[type, type], type]] = {}


def noting(told: Any, mixin: type[NotedOptions]) -> Any:
    """Return a reader or writer of Spark's that has the methods of `mixin` before its own.

    Parameters
    ----------
    told
        A new reader or writer, which nobody has told anything yet.
    mixin
        What the class of the result is made of besides that of `told`.
    """
    base = type(told)
    if (mixin, base) not in _MADE:
        _MADE[mixin, base] = type(base.__name__, (mixin, base), {"__doc__": base.__doc__})
    told.__class__ = _MADE[mixin, base]
    told._icechunk_options = {}
    return told
