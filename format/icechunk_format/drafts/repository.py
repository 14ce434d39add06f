"""Reads a repository of a draft: its kind, snapshots, nodes and chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from icechunk_format.drafts.model import DraftChunks, DraftNode, DraftSnapshot
from icechunk_format.drafts.numbered_refs import NumberedRefs
from icechunk_format.drafts.records import Field
from icechunk_format.drafts.state_file import STATE, StateFile
from icechunk_format.encoding.manifest.chunk_refs import KIND_INLINE, KIND_VIRTUAL
from icechunk_format.errors import FormatError, InvalidInputError, NotFoundError
from icechunk_format.repository.lifecycle.discovery import has_repository
from icechunk_format.storage.batches import batches
from icechunk_format.storage.location import Location, Place, open_storage
from icechunk_format.storage.protocol import ReadRequest

_ROWS_AT_ONCE: Final = 65536


class DraftRepository:
    """A read-only repository of a draft, opened by ``open_draft``.

    Methods raise ``NotFoundError`` for missing objects, ``FormatError`` for damaged objects, and
    ``UnsupportedError`` for features that the draft does not describe.

    Examples
    --------
    >>> draft = open_draft("s3://old/draft")  # doctest: +SKIP
    >>> [one.message for one in draft.ancestry(draft.branches()["main"])]  # doctest: +SKIP
    ['second commit', 'first commit']
    """

    def __init__(self, location: Location, reader: NumberedRefs | StateFile) -> None:
        self.location = location
        self.kind = reader.kind
        self._reader = reader

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.location)!r})"

    def branches(self) -> dict[str, str]:
        """Return every branch with the id of its newest snapshot, sorted by name."""
        return dict(sorted(self._reader.branches.items()))

    def tags(self) -> dict[str, str]:
        """Return every tag with the id of its snapshot, sorted by name."""
        return dict(sorted(self._reader.tags.items()))

    def properties(self) -> dict[str, Any]:
        """Return the properties of the draft and its branches, which are not those of snapshots."""
        return self._reader.properties

    def snapshot(self, snapshot_id: str) -> DraftSnapshot:
        """Return a snapshot by its id."""
        return self._reader.snapshot(self._record(snapshot_id))

    def _record(self, snapshot_id: str) -> Field:
        found = self._reader.record(snapshot_id)
        if found is None:
            problem = f"snapshot {snapshot_id!r} does not exist in the draft at {self.location}"
            raise NotFoundError(problem, kind="snapshot", name=snapshot_id)
        return found

    def ancestry(self, snapshot_id: str) -> Iterator[DraftSnapshot]:
        """Yield a snapshot and its ancestors, newest first."""
        seen: set[str] = set()
        following: str | None = snapshot_id
        while following is not None:
            if following in seen:
                problem = f"snapshot {following} is its own ancestor"
                raise FormatError(problem, object_key=following, file_type="draft snapshot")
            seen.add(following)
            found = self.snapshot(following)
            yield found
            following = found.parent_id

    def snapshots(self) -> list[DraftSnapshot]:
        """Return every snapshot that a branch or tag reaches, parents before their children."""
        found: dict[str, DraftSnapshot] = {}
        for tip in (*self.branches().values(), *self.tags().values()):
            line = []
            for snapshot in self.ancestry(tip):
                if snapshot.id in found:
                    break
                line.append(snapshot)
            found |= {snapshot.id: snapshot for snapshot in reversed(line)}
        return list(found.values())

    def nodes(self, snapshot_id: str) -> list[DraftNode]:
        """Return the nodes of a snapshot, sorted by path."""
        found = sorted(self._reader.nodes(self._record(snapshot_id)), key=lambda node: node.path)
        for values in ({node.id for node in found}, {node.path for node in found}):
            if len(values) < len(found):
                problem = "two nodes have the same id or the same path"
                raise FormatError(problem, object_key=snapshot_id, file_type="draft snapshot")
        return found

    def chunk_refs(self, node: DraftNode) -> DraftChunks:
        """Return all chunk references of an array, sorted by coordinate.

        References outside the chunk grid, left from a formerly larger array, are omitted. Memory:
        all references of the array, and one stored manifest.
        """
        if node.array is None:
            return DraftChunks.of_rows([], 0)
        parts, ndim = [], node.array.ndim
        for key in node.manifests:
            try:
                found = batches(self._reader.chunks(key, node), _ROWS_AT_ONCE)
                parts += [DraftChunks.of_rows(rows, ndim) for rows in found]
            except (ValueError, OverflowError) as error:
                problem = f"{node.path!r} with {ndim} dimensions has invalid chunks: {error}"
                raise FormatError(problem, object_key=key, file_type="draft manifest") from error
        chunks = DraftChunks.joined(parts, ndim)
        limits = np.array(node.array.grid.num_chunks, dtype=np.int64)
        return chunks.take(np.flatnonzero((chunks.coords < limits).all(axis=1)))

    def read_chunks(self, chunks: DraftChunks, rows: Sequence[int]) -> list[bytes]:
        """Return the encoded bytes of native and inline chunks, in order."""
        found: dict[int, bytes] = {}
        requests: dict[int, ReadRequest] = {}
        for row in rows:
            kind, payload = chunks.kind[row], chunks.payload[row].as_py()
            if kind == KIND_VIRTUAL:
                raise NotFoundError(
                    f"chunk {tuple(chunks.coords[row].tolist())} is virtual: its bytes are at "
                    f"{payload.decode()!r}, not in the repository",
                    kind="chunk",
                )
            if kind == KIND_INLINE:
                found[row] = payload
                continue
            start, length = int(chunks.offset[row]), int(chunks.length[row])
            requests[row] = ReadRequest(key=payload.decode(), start=start, end=start + length)
        contents = self._reader.storage.get_many(list(requests.values()))
        found |= zip(requests, contents, strict=True)
        return [found[row] for row in rows]


def open_draft(location: Place, *, store_root: Place | None = None) -> DraftRepository:
    """Open a repository of one of the two drafts for reading.

    Parameters
    ----------
    location
        Path, URL or ``Location`` of the draft.
    store_root
        The location of the data of a state file, if it differs from ``location``. The location in
        the file is not followed, since the file is untrusted.

    Returns
    -------
    DraftRepository
        The opened draft.

    Raises
    ------
    NotFoundError
        The location is not a draft.
    FormatError
        The state file is damaged.
    InvalidInputError
        The data are at another location, and ``store_root`` was not given.

    Examples
    --------
    >>> open_draft("s3://old/draft").kind  # doctest: +SKIP
    'state file'
    """
    found = Location.of(location)
    storage = open_storage(found)
    if has_repository(storage):
        problem = "it is a released repository; open it with Repository.open"
    elif storage.head(STATE) is not None:
        root = None if store_root is None else Location.of(store_root)
        state = StateFile(storage, storage if root is None else open_storage(root))
        own = ("", ".", found.url.rstrip("/"), storage.root_url.rstrip("/"))
        if root is None and state.store_root not in own:
            raise InvalidInputError(
                f"the state file at {found} has its data at {state.store_root!r}; set store_root "
                "to that location if you trust it",
                store_root=state.store_root,
            )
        return DraftRepository(found, state)
    elif (numbered := NumberedRefs(storage)).branch_files:
        return DraftRepository(found, numbered)
    else:
        problem = f"it has neither {STATE!r} nor branch files like 'r/main/ZZZZZZZZ.json'"
    raise NotFoundError(
        f"{found} is not a draft of a repository: {problem}", kind="repository", location=str(found)
    )
