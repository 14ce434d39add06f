"""Reports how far long work in this process is.

Functions that may work for long take ``progress``: nothing (they are silent), True (a bar in the
notebook or terminal, by tqdm), or a function of one's own:

>>> def show(done: int, total: int | None, what: str) -> None:
...     print(f"{what}: {done} of {'?' if total is None else total}")

Rules of this file
------------------
1. Work goes through phases, ``what``, one after another. In each of them ``done`` begins at 0,
   never falls, and ends at ``total``; that is None until the end where nobody knows it before.
2. The function is called at the beginning and at the end of a phase, and at most ten times a second
   in between, always by the thread that called the work. A phase of 0 steps is left out.
3. What the function raises ends the work there, as an error of the store would: nothing was
   committed, and the same call can be repeated. It is not called after a commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Final, Protocol, TypeAlias, TypeVar

from icechunk_format.errors import UnsupportedError

_SECONDS_BETWEEN: Final = 0.1

T = TypeVar("T")


class Progress(Protocol):
    """A function that is told how far a phase of the work is."""

    def __call__(self, done: int, total: int | None, what: str, /) -> None:
        """Take the report: ``done`` of ``total`` steps of the phase ``what``."""


ProgressOption: TypeAlias = Progress | bool | None
"""The argument ``progress``: a function, True for a bar, None or False for silence."""


@contextmanager
def phase(
    progress: ProgressOption, what: str, total: int | None = None
) -> Iterator[Callable[[int], None]]:
    """Report a phase; yield a function that takes how many steps were done since its last call.

    The end is reported only where the block ends without an error.

    Raises
    ------
    UnsupportedError
        ``progress`` is True, and tqdm is not installed.
    """
    if progress is None or progress is False or total == 0:
        yield lambda _: None
        return
    with _bar(what, total) if progress is True else nullcontext(progress) as report:
        done, due = 0, time.monotonic() + _SECONDS_BETWEEN

        def advance(steps: int) -> None:
            nonlocal done, due
            done += steps
            now = time.monotonic()
            # The last step is reported as the end.
            if now >= due and done != total:
                report(done, total, what)
                due = now + _SECONDS_BETWEEN

        report(0, total, what)
        yield advance
        report(done, done, what)


def counted(
    items: Iterable[T], progress: ProgressOption, what: str, total: int | None = None
) -> Iterator[T]:
    """Yield items, and report each as a step once whoever takes them comes back for the next."""
    with phase(progress, what, total) as advance:
        for item in items:
            yield item
            advance(1)


@contextmanager
def _bar(what: str, total: int | None) -> Iterator[Progress]:
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise UnsupportedError(
            "progress=True shows a bar by tqdm, which is not installed: pip install "
            "'icechunk-spark[progress]', or give a function of (done, total, what)"
        ) from error
    bar = tqdm(desc=what, total=total, unit="")

    def report(done: int, total: int | None, _what: str, /) -> None:
        bar.total = total
        bar.update(done - bar.n)

    try:
        yield report
    finally:
        bar.close()
