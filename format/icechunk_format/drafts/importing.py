"""Importing a draft into a new repository of spec version 2, with its whole history.

Everything is stored under names that nothing refers to, and ``repo`` is created last and only once.
So the import is visible as a whole or not at all, and one that failed can be run again to the same
place.

Decisions
---------
1. All first versions of the draft stand on one empty version, which released versions begin with.
2. A version keeps its message, its time and its properties, and has its id of the draft under
   ``draft_snapshot_id``. Times of released versions grow from parent to child; where those of a
   draft do not, the child is one microsecond after its parent.
3. Ids of versions are digests of the ids of the draft. A node keeps its id over all versions in
   which it has the same number, path and kind.
4. Groups that a path needs and the draft does not have are added, without attributes.
5. ``main`` is the newest of all branches and tags where the draft has no such branch.
6. What belongs to no version (properties of branches, the id of a dataset) goes to the metadata of
   the repository, under ``imported_draft``.
7. Virtual chunks stay virtual. No container is made for them, since whoever reads decides which
   places to trust; the report says which there are.

Specification: both drafts; "Repo Info File", "Snapshot Files", "Transaction Log Files".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from icechunk_format.drafts.converting import ChunkConverter
from icechunk_format.drafts.model import DraftRepository
from icechunk_format.drafts.opening import open_draft
from icechunk_format.drafts.versions import VersionWriter, draft_snapshot_id
from icechunk_format.errors import AlreadyExistsError, NotFoundError, ReadOnlyError
from icechunk_format.repository.lifecycle.create import create_object
from icechunk_format.repository.lifecycle.discovery import has_repository
from icechunk_format.repository.lifecycle.upgraded_state import MAIN, RefsOfVersion1, upgraded_state
from icechunk_format.spec.ids import INITIAL_SNAPSHOT_ID
from icechunk_format.spec.object_keys import (
    CHUNKS,
    MANIFESTS,
    REPO,
    snapshot_key,
    transaction_log_key,
)
from icechunk_format.spec.repo_info import file as repo_info
from icechunk_format.spec.values.metadata_items import MetadataItems
from icechunk_format.storage.location import Location, Place, open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from icechunk_format.drafts.model import DraftSnapshot
    from icechunk_format.storage.protocol import Storage

METADATA_NAME: Final = "imported_draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What an import did, or would do.

    Parameters
    ----------
    dry_run
        Nothing was written.
    kind
        Which draft it was: ``numbered refs`` or ``state file``.
    snapshots
        Versions that were imported; the empty first one is not counted.
    branches, tags
        Their names.
    chosen_main
        The version that ``main`` was put at because the draft has no such branch; else None.
    native_chunks, inline_chunks, virtual_chunks
        How many there are; what several versions share counts once.
    bytes_copied
        Bytes of native chunks.
    virtual_prefixes
        Where virtual chunks lie: readers have to authorise these, and existing libraries need a
        virtual chunk container for each.
    snapshot_ids
        Id in the draft to the new id.
    """

    dry_run: bool
    kind: str
    snapshots: int
    branches: tuple[str, ...]
    tags: tuple[str, ...]
    chosen_main: str | None
    native_chunks: int
    inline_chunks: int
    virtual_chunks: int
    bytes_copied: int
    virtual_prefixes: tuple[str, ...]
    snapshot_ids: Mapping[str, str] = field(default_factory=dict)


def import_draft(
    source: DraftRepository | Place,
    target: Place,
    *,
    dry_run: bool = False,
) -> ImportReport:
    """Import a draft with the history of all its branches and tags into a new repository.

    Parameters
    ----------
    source
        The draft, or where it is.
    target
        An empty place. What an interrupted import of the same draft left there is no obstacle.
    dry_run
        Read all metadata, check them and count, but read no chunk and write nothing.

    Raises
    ------
    NotFoundError
        There is no draft, it holds no version, or an object of it is missing.
    AlreadyExistsError
        A repository or anything else is at the target.
    FormatError, UnsupportedError
        The draft is damaged, or uses what its text does not describe.
    ReadOnlyError
        The target cannot be written.
    CommitOutcomeUnknownError, StorageError
        A store failed. Nothing of the import can be seen, unless the outcome is unknown.
    """
    draft = source if isinstance(source, DraftRepository) else open_draft(source)
    place = Location.of(target)
    storage = open_storage(place)
    snapshots = draft.snapshots()
    if not snapshots:
        raise NotFoundError(
            f"the draft at {draft.location} holds no version, so there is nothing to import",
            kind="snapshot",
        )
    if storage.is_read_only and not dry_run:
        raise ReadOnlyError(
            f"{place} can only be read; import to a store that can be written",
            location=str(place),
        )
    _check_target(storage, snapshots)
    branches, tags = draft.branches(), draft.tags()
    chosen_main = None
    if MAIN not in branches:
        newest = max(
            snapshots, key=lambda s: (s.id in {*branches.values(), *tags.values()}, s.written_at)
        )
        chosen_main = branches[MAIN] = newest.id
    converter = ChunkConverter(draft, None if dry_run else storage)
    writer = VersionWriter(draft, converter, None if dry_run else storage)
    writer.begin(min(snapshot.written_at for snapshot in snapshots))
    for snapshot in snapshots:
        writer.add(snapshot)
    if not dry_run:
        ids = writer.snapshot_ids
        refs = RefsOfVersion1(
            branches={name: ids[tip] for name, tip in branches.items()},
            tags={name: ids[tip] for name, tip in tags.items()},
        )
        metadata = MetadataItems.of({METADATA_NAME: {"kind": draft.kind, **draft.properties()}})
        state = upgraded_state(refs, writer.infos, now=None, metadata_items=metadata)
        create_object(storage, REPO, repo_info.encode(state))
    return ImportReport(
        dry_run=dry_run,
        kind=draft.kind,
        snapshots=len(snapshots),
        branches=tuple(sorted(branches)),
        tags=tuple(sorted(tags)),
        chosen_main=chosen_main,
        native_chunks=converter.native,
        inline_chunks=converter.inline,
        virtual_chunks=converter.virtual,
        bytes_copied=converter.bytes_copied,
        virtual_prefixes=tuple(sorted(converter.virtual_prefixes)),
        snapshot_ids={key: str(value) for key, value in writer.snapshot_ids.items()},
    )


def _check_target(storage: Storage, snapshots: Sequence[DraftSnapshot]) -> None:
    """Refuse a target with anything that an interrupted import of this draft does not leave."""
    if has_repository(storage):
        raise AlreadyExistsError(
            f"there is a repository at {storage.root_url} already; import to an empty place",
            kind="repository",
            location=storage.root_url,
        )
    ids = {INITIAL_SNAPSHOT_ID, *(draft_snapshot_id(snapshot.id) for snapshot in snapshots)}
    own = {key for i in ids for key in (snapshot_key(i), transaction_log_key(i))}
    for found in storage.list(""):
        if not found.key.startswith((CHUNKS, MANIFESTS)) and found.key not in own:
            raise AlreadyExistsError(
                f"{storage.root_url} is not empty: {found.key} is there; import to an empty place",
                found=(found.key,),
            )
