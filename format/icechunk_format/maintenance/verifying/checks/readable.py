"""Decodes files, and reports missing, damaged and unsorted files and wrong ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from icechunk_format.encoding.envelope import FileType, unwrap
from icechunk_format.encoding.manifest.decode import Manifest
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import FormatError, UnsupportedError
from icechunk_format.maintenance.verifying.findings import Spot

HIDES: Final = ", so that other clients may not find what they hold"
"""The consequence of an unsorted list for clients, which use binary search."""

_T = TypeVar("_T", Snapshot, Manifest)


def decoded(
    kind: str,
    data: bytes | None,
    decode: Callable[..., _T],
    wanted: object,
    here: Spot,
    note: str = "",
) -> _T | None:
    """Return the decoded file; report problems, and return None if it is unusable.

    ``note`` is added to the finding of a damaged file.
    """
    here.report.count(f"{kind}s")
    code, problem = "missing", f"the {kind} file does not exist"
    if data is not None:
        try:
            found = decode(data, object_key=here.where["object_key"])
        except (FormatError, UnsupportedError) as error:
            code, problem = "damaged", error.message.splitlines()[0] + note
        else:
            if found.id == wanted:
                return found
            code, problem = "id-mismatch", f"the file has the id {found.id}"
    here.report.count("unread")
    here.add(f"{kind}-{code}", problem)
    return None


@contextmanager
def reporting(here: Spot, damaged: str, unsupported: str | None = None) -> Iterator[None]:
    """Report errors of the block as findings of damaged or unsupported data."""
    try:
        yield
    except FormatError as error:
        here.add(damaged, error.message.splitlines()[0])
    except UnsupportedError as error:
        here.add(unsupported or damaged, error.message.splitlines()[0])


def check_order(
    data: bytes,
    file_type: FileType,
    unsorted_in: Callable[..., Sequence[str]],
    kind: str,
    here: Spot,
    follows: str = HIDES,
) -> None:
    """Report the unsorted lists of a file."""
    object_key = here.where["object_key"]
    payload = unwrap(data, file_type=file_type, object_key=object_key).payload
    unsorted: Sequence[str] = ()
    with reporting(here, kind.replace("unsorted", "damaged")):
        unsorted = unsorted_in(payload, object_key=object_key)
    if unsorted:
        here.add(kind, f"the lists {', '.join(unsorted)} are out of order{follows}")
