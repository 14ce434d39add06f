"""Opens the repository that a change is written to, and the snapshot on which it is based."""

from __future__ import annotations

from icechunk_format.encoding.ids import SnapshotId
from icechunk_format.encoding.snapshot.file import Snapshot
from icechunk_format.errors import NotFoundError
from icechunk_format.groups.changing.result import WriteResult, find_committed
from icechunk_format.groups.changing.targets import Destination
from icechunk_format.options.write import WriteOptions
from icechunk_format.repository import Repository
from icechunk_format.repository.chunks.source import checked_source
from icechunk_format.repository.files import ManifestFormat
from icechunk_format.repository.lifecycle.create import check_new_root
from icechunk_format.storage.location import Location, Place, open_storage
from icechunk_format.storage.options import NO_ACCESS, VirtualAccess


def open_destination(
    location: Place, options: WriteOptions, access: VirtualAccess = NO_ACCESS
) -> tuple[Destination, Snapshot | None] | WriteResult:
    """Return the repository of a change and its base; a result if it is already committed."""
    destination, base, done = find_base(location, options, access)
    return done or (destination, base)


def find_base(
    location: Place, options: WriteOptions, access: VirtualAccess
) -> tuple[Destination, Snapshot | None, WriteResult | None]:
    """Return the repository of a change, its base, and the result if it is already committed."""
    root = Location.of(location)
    found = Repository.find(root)
    if found is None:
        check_new_location(root, options)
        new = Destination(
            location=root,
            base=None,
            manifest_format=ManifestFormat(spec_version=options.spec_version),
            chunk_source=checked_source(root, access),
        )
        return new, None, None
    repository = found.as_read()
    snapshot = repository.snapshot(_base(repository, options))
    destination = Destination(
        location=root,
        base=snapshot.id,
        manifest_format=ManifestFormat(
            spec_version=repository.spec_version, config=repository.config
        ),
        chunk_source=repository.chunk_source(
            authorized=access.authorized, virtual_options=access.options
        ),
    )
    return destination, snapshot, find_committed(repository, options)


def check_new_location(location: Location, options: WriteOptions) -> None:
    """Raise if the commit cannot create the repository at this location with this branch."""
    check_new_root(open_storage(location))
    if options.branch != "main" and not options.create_branch:
        raise NotFoundError(
            f"there is no repository at {location}, so there is no branch {options.branch!r}; "
            "write to main first, or set createBranch=true to create both",
            kind="branch",
            name=options.branch,
        )


def _base(repository: Repository, options: WriteOptions) -> SnapshotId:
    is_missing = options.create_branch and options.branch not in repository.branches()
    try:
        return repository.resolve(branch="main" if is_missing else options.branch)
    except NotFoundError as error:
        if error.facts.get("kind") != "branch":
            raise
        # It lists the branches, the most similar first.
        message = f"{error.message}; set createBranch=true to create it"
        raise NotFoundError(message, **error.facts) from None


def branch_missing(repository: Repository, options: WriteOptions) -> bool:
    """Return True if the branch must be created; raise NotFoundError without createBranch."""
    if options.branch in repository.branches():
        return False
    if not options.create_branch:
        raise NotFoundError(
            f"there is no branch {options.branch!r} in {repository.location}; set "
            "createBranch=true to create it",
            kind="branch",
            name=options.branch,
        )
    return True
