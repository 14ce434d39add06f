"""Converts the options of a write to those of the dataset layer, for planned and unplanned writes.

Options that only say how Spark moves the rows have no counterpart there.
"""

from __future__ import annotations

from dataclasses import fields

from icechunk_format.dataset.writing.options import WriteOptions
from icechunk_format.options.write import WriteRequest
from icechunk_format.options.write_request import Mode


def dataset_options(request: WriteRequest, mode: Mode) -> WriteOptions:
    """Return the options of a write for the dataset layer."""
    same = {item.name for item in fields(WriteOptions)} & {item.name for item in fields(request)}
    given = {name: getattr(request, name) for name in same}
    given["branch"] = request.branch or "main"
    given["encoding"] = request.encoding or {}
    return WriteOptions(mode=mode, **given)
