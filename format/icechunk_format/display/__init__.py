"""Displays values: plain text for terminals, HTML for notebooks.

=====================  =============================================================================
module                 content
=====================  =============================================================================
``plain_text``         escapes strings from a repository; formats sizes, times and counts
``markup``             escapes strings from a repository in HTML; the shared parts of pages
``history``            a repository as a graph of snapshots, branches and tags; differences
``groups``             a dataset, and all groups and arrays of a snapshot
``arrays``             one array: dimensions, type, chunks, codecs, sizes
``chunk_picture``      an array and its chunks as a picture
``records``            results and plans: names and values
``planned``            a group that a job would write
=====================  =============================================================================

Rules of this package
---------------------
1. Values are untrusted: strings enter HTML only through ``markup.escaped``.
2. Output is bounded in lines and characters, and counts omitted items.
3. No I/O, except that a repository's HTML reads ``repo`` once.
4. Functions do not raise: a value that cannot be displayed is replaced by its error.
5. Values are typed ``Any``, since their classes are defined in higher layers.
6. Executors and cold starts import the classes without display code: the methods ``__repr__`` and
   ``_repr_html_`` that this module adds import the others on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from importlib import import_module
from typing import Any, TypeVar

_ClassT = TypeVar("_ClassT", bound=type[Any])


def shown_by(functions: str) -> Callable[[_ClassT], _ClassT]:
    """Decorate a class with ``__repr__`` and ``_repr_html_``; must be above ``dataclass``.

    For ``groups.dataset``, the functions are ``dataset_text`` and ``dataset_html`` of ``groups``.
    """

    def decorate(shown: _ClassT) -> _ClassT:
        shown.__repr__ = _shown_by(f"{functions}_text", str)  # type: ignore[assignment]
        shown._repr_html_ = html_by(f"{functions}_html")
        return shown

    return decorate


def html_by(function: str) -> Callable[[Any], str]:
    """Return a ``_repr_html_`` that calls a function such as ``history.repository_html``."""
    return _shown_by(function, lambda text: f"<pre>{escape(text)}</pre>")


def _shown_by(function: str, failed: Callable[[str], str]) -> Callable[[Any], str]:
    def show(self: Any) -> str:
        try:
            module, _, name = function.partition(".")
            text: str = getattr(import_module(f"icechunk_format.display.{module}"), name)(self)
            return text
        # Debuggers and notebooks show nothing of a container if the display of an item raises.
        except Exception as error:
            name = type(self).__name__
            return failed(f"<{name}, which cannot be shown: {type(error).__name__}>")

    return show
