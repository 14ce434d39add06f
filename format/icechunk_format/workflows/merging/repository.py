"""``Repository``: the repository that users hold, which also merges branches.

Merging is loaded at the first merge, since it reads and writes arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from icechunk_format import repository
from icechunk_format.repository.files import ManifestFormat

if TYPE_CHECKING:
    from icechunk_format.encoding.ids import SnapshotId
    from icechunk_format.repository.session import Resolve
    from icechunk_format.workflows.merging.merge import Merge, MergeResult


class Repository(repository.Repository):
    """An Icechunk repository of spec version 1 or 2, for reading, changing and merging.

    The constructor does no I/O and checks nothing; use ``Repository.open``.

    Methods that change the repository may raise, in addition to the errors of ``RepositoryReader``,
    ``ReadOnlyError`` (the repository or the storage is read-only), ``ConflictError`` (other writers
    made conflicting changes, or changed the repository on every attempt; nothing was changed) and
    ``CommitOutcomeUnknownError`` (the storage did not report whether the change succeeded).

    Examples
    --------
    >>> repository = Repository.open("s3://bucket/weather")
    >>> repository.create_tag("v1", repository.resolve(branch="main"))
    """

    def merge(
        self,
        source: str,
        into: str = "main",
        *,
        resolve: Resolve | None = None,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        virtual_authorize: Sequence[str] = (),
        virtual_options: Mapping[str, str] | None = None,
    ) -> MergeResult:
        """Commit the changes of a branch since the common ancestor on top of another branch.

        The changes become one commit; no chunk is copied, and ``source`` does not change. If both
        branches have appended along a dimension, their labels are joined as those of parallel
        appends; only chunks with cells of both are written again. A later merge of the same
        branches starts from this one.

        Parameters
        ----------
        source, into
            The branch with the changes, and the branch that receives them.
        resolve
            For chunks or cells that both sides changed: ``"ours"`` takes those of ``source``,
            ``"theirs"`` keeps those of ``into``; None raises ConflictError.
        message, metadata
            Message and JSON values by name of the commit. The default message names the branches.
        dry_run
            If True, only the changes and conflicts are returned; nothing is committed.
        virtual_authorize, virtual_options
            URL prefixes from which virtual chunks may be fetched, and settings of their storage.
            Only chunks that are written again are fetched.

        Returns
        -------
        MergeResult
            The changes, the conflicts, and the commit, if one was made.

        Raises
        ------
        ConflictError
            Both sides changed the same objects, or the common ancestor no longer exists; nothing
            was committed.
        NotFoundError
            A branch does not exist.
        InvalidInputError
            ``resolve``, a prefix or a setting is invalid.
        UnauthorizedVirtualChunkError
            A chunk to write again is outside of every authorized prefix.

        Examples
        --------
        >>> repository.merge("fix", into="main", dry_run=True).conflicts  # doctest: +SKIP
        """
        from icechunk_format.workflows.merging.merge import merged

        message = f"Merge branch {source!r} into {into!r}" if message is None else message
        given = {"resolve": resolve, "message": message, "metadata": metadata, "dry_run": dry_run}
        chunks = self.chunk_source(authorized=virtual_authorize, virtual_options=virtual_options)
        sides = {"name": f"branch {source!r}", "chunk_source": chunks}
        tip = self.resolve(branch=source)
        made = partial(self._merge, tip, into, **sides)
        return merged(made, self.storage.root_url, into, **given)

    def cherry_pick(
        self,
        snapshot: SnapshotId | str,
        onto: str = "main",
        *,
        resolve: Resolve | None = None,
        message: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        virtual_authorize: Sequence[str] = (),
        virtual_options: Mapping[str, str] | None = None,
    ) -> MergeResult:
        """Commit the changes of one snapshot, relative to its parent, on top of a branch.

        The result is that of ``merge``; its ``base`` is the parent of the snapshot.

        Parameters
        ----------
        snapshot, onto
            Id of the snapshot with the changes, and the branch that receives them.
        resolve, message, metadata, dry_run, virtual_authorize, virtual_options
            As for ``merge``; the default message is that of the snapshot.

        Raises
        ------
        InvalidInputError
            The snapshot has no parent, or an argument is invalid.
        ConflictError, NotFoundError, UnauthorizedVirtualChunkError
            As for ``merge``; ConflictError also if the parent of the snapshot has expired.

        Examples
        --------
        >>> repository.cherry_pick("1CECHNKREP0F1RSTCMT0", onto="main")  # doctest: +SKIP
        """
        from icechunk_format.workflows.merging.merge import merged, parent_of

        picked = self.resolve(snapshot=snapshot)
        parent = parent_of(self._history(), picked, self.storage.root_url)
        message = self.snapshot_info(picked).message if message is None else message
        given = {"resolve": resolve, "message": message, "metadata": metadata, "dry_run": dry_run}
        chunks = self.chunk_source(authorized=virtual_authorize, virtual_options=virtual_options)
        sides = {"name": f"snapshot {picked}", "base": parent, "records": "picked_snapshot"}
        made = partial(self._merge, picked, onto, chunk_source=chunks, **sides)
        return merged(made, self.storage.root_url, onto, **given)

    def _merge(self, source: SnapshotId, into: str, **given: Any) -> Merge:
        from icechunk_format.workflows.merging.merge import Merge

        # One state has the target and its history: another writer may commit before the next read.
        history = self._history()
        return Merge(
            storage=self.storage,
            history=history,
            format=ManifestFormat(spec_version=self._version_now(), config=self.config),
            tip=self.writable_tip(into),
            source=source,
            target=self._resolve(history, branch=into),
            **given,
        )
