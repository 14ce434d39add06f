"""Lists the applications that committed versions to a branch: ``txnAppId`` and ``txnVersion``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from icechunk_format.groups.changing.result import TXN_APP_ID, TXN_QUERY, TXN_VERSION

if TYPE_CHECKING:
    from icechunk_format.encoding.ids import SnapshotId
    from icechunk_format.encoding.repo_info.file import SnapshotInfo
    from icechunk_format.repository import RepositoryReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """The commits of one application on a branch."""

    app_id: str
    versions: tuple[tuple[int, int], ...]
    """The committed versions, ascending, as ranges from first to last."""
    commits: int
    newest: SnapshotInfo
    """Its newest commit."""
    query: str | None
    """The id of the streaming query of its newest commit; None for other calls."""

    @property
    def snapshot_id(self) -> SnapshotId:
        """The snapshot of its newest commit."""
        return self.newest.id

    @property
    def last_version(self) -> int:
        """The version of its newest commit, which need not be the highest one."""
        return int(self.newest.metadata[TXN_VERSION])


def applications(repository: RepositoryReader, branch: str) -> list[Application]:
    """Return the applications that committed versions to a branch, the latest first.

    Only snapshots in the history of the branch count: versions of expired snapshots are not
    listed, and `has_expired` returns whether there may be any.
    """
    found: dict[str, list[SnapshotInfo]] = {}
    for info in repository.ancestry(branch=branch):
        items = info.metadata_items
        app_id = items.get(TXN_APP_ID)
        if isinstance(app_id, str) and isinstance(items.get(TXN_VERSION), int):
            found.setdefault(app_id, []).append(info)
    return [
        Application(
            app_id=app_id,
            versions=tuple(_ranges(info.metadata[TXN_VERSION] for info in infos)),
            commits=len(infos),
            newest=infos[0],
            query=_string(infos[0].metadata.get(TXN_QUERY)),
        )
        for app_id, infos in found.items()
    ]


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _ranges(versions: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of consecutive numbers, ascending."""
    ordered = sorted(set(versions))
    ends = [before for before, after in pairwise(ordered) if after > before + 1]
    starts = [after for before, after in pairwise(ordered) if after > before + 1]
    yield from zip([*ordered[:1], *starts], [*ends, *ordered[-1:]], strict=True)
