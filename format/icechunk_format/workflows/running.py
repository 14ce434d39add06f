"""Runs a function on every task of a workflow, in this process or on Spark's executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

Task = TypeVar("Task")
Receipt = TypeVar("Receipt")


class Run(Protocol):
    """Runs a function on every task; returns the receipts in any order.

    Function, tasks and receipts must be picklable, and tasks must hold no credentials.
    """

    def __call__(
        self, function: Callable[[Task], Receipt], tasks: Sequence[Task], /
    ) -> Iterable[Receipt]:
        """Run `function` on every task."""


def in_process(function: Callable[[Task], Receipt], tasks: Sequence[Task]) -> Iterator[Receipt]:
    """Run a function on tasks one after another, lazily as receipts are consumed."""
    return map(function, tasks)
