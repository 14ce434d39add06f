"""The last line of an error is the one that Spark's users read.

Spark prints an error of ours under the traceback of a worker, which is itself under that of the
JVM. Texts of the lower layers may have several lines, with the matter in the first; here they
become one.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING

from icechunk_format.errors import IcechunkError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def errors_on_one_line() -> Iterator[None]:
    """Let errors of ours leave with the same class and facts, and their text on one line."""
    try:
        yield
    except IcechunkError as error:
        lines = [line.strip() for line in error.message.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
        joined = copy.copy(error)
        joined.message = "; ".join(lines)
        joined.args = (joined.message,)
        raise joined.with_traceback(error.__traceback__) from None
