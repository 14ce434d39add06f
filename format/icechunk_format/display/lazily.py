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
    return _shown_by(function, str)


def html_by(function: str) -> Callable[[Any], str]:
    """Return a ``_repr_html_`` that calls a function such as ``groups.dataset_html``."""
    return _shown_by(function, lambda text: f"<pre>{escape(text)}</pre>")


def _shown_by(function: str, failed: Callable[[str], str]) -> Callable[[Any], str]:
    def show(self: Any) -> str:
        try:
            return _found(function)(self)
        # An error would hide the value, and whatever holds it, from debuggers and notebooks.
        except Exception as error:
            name = type(self).__name__
            return failed(f"<{name}, which cannot be shown: {type(error).__name__}>")

    return show


def _found(function: str) -> Callable[[Any], str]:
    module, _, name = function.partition(".")
    found: Callable[[Any], str] = getattr(import_module(f"icechunk_format.display.{module}"), name)
    return found
