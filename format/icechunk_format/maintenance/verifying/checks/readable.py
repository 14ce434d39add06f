"""Decodes a file to verify, and reports one that is missing, damaged or another one."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from icechunk_format.errors import FormatError, UnsupportedError
from icechunk_format.maintenance.verifying.findings import Report

_T_co = TypeVar("_T_co", covariant=True)


class _Decode(Protocol[_T_co]):
    def __call__(self, data: bytes, *, object_key: str) -> _T_co: ...


def decoded(
    kind: str,
    data: bytes | None,
    decode: _Decode[_T_co],
    wanted: object,
    report: Report,
    where: dict[str, Any],
    note: str = "",
) -> _T_co | None:
    """Return a file, None where there is nothing to check; ``note`` follows on what is damaged."""
    report.count(f"{kind}s")
    code, problem = "missing", f"the {kind} file is not there"
    if data is not None:
        try:
            found: Any = decode(data, object_key=where["object_key"])
        except (FormatError, UnsupportedError) as error:
            code, problem = "damaged", error.message.splitlines()[0] + note
        else:
            if found.id == wanted:
                checked: _T_co = found
                return checked
            code, problem = "id-mismatch", f"the file says that it is {found.id}"
    report.count("unread")
    report.add(f"{kind}-{code}", problem, **where)
    return None
