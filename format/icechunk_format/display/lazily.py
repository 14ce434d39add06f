"""Gives classes a ``__repr__`` and ``_repr_html_`` by functions that are loaded when used.

Executors and cold starts import the classes, and never what shows them.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from importlib import import_module
from typing import Any


def text_by(function: str) -> Callable[[Any], str]:
    """Return a ``__repr__`` that calls a function such as ``groups.dataset_text``."""

    def show(self: Any) -> str:
        try:
            return _found(function)(self)
        # An error would hide the value, and whatever holds it, from debuggers and notebooks.
        except Exception as error:
            return f"<{type(self).__name__}, which cannot be shown: {type(error).__name__}>"

    return show


def html_by(function: str) -> Callable[[Any], str]:
    """Return a ``_repr_html_`` that calls a function such as ``groups.dataset_html``."""

    def show(self: Any) -> str:
        try:
            return _found(function)(self)
        # As above.
        except Exception as error:
            text = f"<{type(self).__name__}, which cannot be shown: {type(error).__name__}>"
            return f"<pre>{escape(text)}</pre>"

    return show


def _found(function: str) -> Callable[[Any], str]:
    module, _, name = function.partition(".")
    found: Callable[[Any], str] = getattr(import_module(f"icechunk_format.display.{module}"), name)
    return found
