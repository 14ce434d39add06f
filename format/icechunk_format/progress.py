"""Reports the progress of long-running work in this process.

Long-running functions take ``progress``: None (silent), True (a bar of tqdm in the notebook or
terminal), or a function:

>>> def show(done: int, total: int | None, what: str) -> None:
...     print(f"{what}: {done} of {'?' if total is None else total}")

Rules of this file
------------------
1. Work consists of consecutive phases, named ``what``. In each, ``done`` starts at 0, never
   decreases, and ends at ``total``, which is None until the end if it is unknown.
2. The function is called at the start and at the end of a phase, and at most ten times a second in
   between, always by the caller's thread. A phase of 0 steps is omitted.
3. An exception of the function ends the work like an error of the storage: nothing is committed,
   and the call can be repeated. The function is not called after a commit.
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
    """A function that receives the progress of a phase."""

    def __call__(self, done: int, total: int | None, what: str, /) -> None:
        """Receive a report: ``done`` of ``total`` steps of the phase ``what``."""


ProgressOption: TypeAlias = Progress | bool | None
"""The argument ``progress``: a function, True for a bar, None or False for silence."""


@contextmanager
def phase(
    progress: ProgressOption, what: str, total: int | None = None
) -> Iterator[Callable[[int], None]]:
    """Report a phase; yield a function that takes the number of steps since its last call.

    The end is reported only if the block ends without an error.

    Raises
    ------
    UnsupportedError
        ``progress`` is True, and tqdm is not installed.

    Examples
    --------
    >>> with phase(print, "Copying", total=2) as advance:
    ...     advance(2)
    0 2 Copying
    2 2 Copying
    """
    if progress is None or progress is False or total == 0:
        yield lambda _: None
        return
    with bar(what, total) if progress is True else nullcontext(progress) as report:
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
    """Yield items, and report each as a step when the caller takes the next one.

    Raises
    ------
    UnsupportedError
        ``progress`` is True, and tqdm is not installed.

    Examples
    --------
    >>> list(counted("ab", None, "Reading letters"))
    ['a', 'b']
    """
    with phase(progress, what, total) as advance:
        for item in items:
            yield item
            advance(1)


@contextmanager
def bar(what: str, total: int | None = None) -> Iterator[Progress]:
    """Show a bar of tqdm in the notebook or terminal; yield its function.

    Raises
    ------
    UnsupportedError
        tqdm is not installed.
    """
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise UnsupportedError(
            "progress=True needs tqdm, which is not installed: pip install "
            "'icechunk-spark[progress]', or give a function of (done, total, what)"
        ) from error
    shown = tqdm(desc=what, total=total, unit="")

    def report(done: int, total: int | None, _what: str, /) -> None:
        shown.total = total
        shown.update(done - shown.n)

    try:
        yield report
    finally:
        shown.close()
