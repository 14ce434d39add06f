"""Finds the repository at a location, or describes the location's contents.

If ``repo`` exists, the spec version is 2, even if files of version 1 exist (an interrupted
upgrade). Otherwise, if ``refs/branch.main/ref.json`` exists, it is 1. A failed search makes a few
more requests to describe the contents of the location.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from icechunk_format.encoding.object_keys import REFS, REPO, SNAPSHOTS, branch_ref_key
from icechunk_format.errors import IcechunkError, NotFoundError
from icechunk_format.storage.location import Location, open_storage
from icechunk_format.storage.protocol import Storage

MAIN_REF: Final = branch_ref_key("main")
_ZARR_V3: Final = "zarr.json"
_ZARR_V2: Final = (".zgroup", ".zarray", ".zattrs", ".zmetadata")
_DRAFT_BRANCH: Final = re.compile(r"r/[^/]+/[0-9A-HJKMNP-TV-Z]{8}\.json")
_MOST_LISTED: Final = 500
_MOST_PARENTS: Final = 4


def has_repository(storage: Storage) -> bool:
    """Return True if a repository of either spec version is at the root of a storage."""
    return storage.head(REPO) is not None or storage.head(MAIN_REF) is not None


def exists_at(location: Location) -> bool:
    """Return True if a repository is at a location; False also if its bucket does not exist."""
    try:
        return has_repository(open_storage(location))
    except NotFoundError:
        return False


def no_repository(location: Location) -> NotFoundError:
    """Return the error for a location without a repository, which describes its contents."""
    url = str(location)
    try:
        found, advice = _found_instead(location)
    except IcechunkError as error:
        # A storage that forbids listing must not hide the error.
        found, advice = f"the location cannot be listed ({error.message.splitlines()[0]})", None
    advice = advice or "check the path, or create a repository there first"
    return NotFoundError(
        f"there is no Icechunk repository at {url}: neither {REPO!r} (spec version 2) nor "
        f"{MAIN_REF!r} (version 1) is there; {found}; {advice}",
        kind="repository",
        location=url,
    )


def _found_instead(location: Location) -> tuple[str, str | None]:
    storage = open_storage(location)
    keys = [found.key for found in islice(storage.list(""), _MOST_LISTED)]
    above = _repository_above(location)
    if above is not None:
        url, below = above
        return (
            f"the location is inside of the repository at {url}",
            f"open {url}; a group or array within it is chosen by the group option, "
            f"perhaps group={below}",
        )
    if not keys:
        advice = (
            "names of metadata tables follow #, as in #history, #refs or #variables; the"
            " manual's page on metadata tables lists all"
        )
        return "nothing is stored below this path", advice if "#" in location.url else None
    if _ZARR_V3 in keys or any(key in keys for key in _ZARR_V2):
        kind = "version 3" if _ZARR_V3 in keys else "version 2"
        return (
            f"the location holds a plain Zarr {kind} store, without snapshots",
            "copy plain Zarr into an Icechunk repository first",
        )
    draft = _draft(storage)
    if draft is not None:
        return (
            f"the location holds a repository of a draft from before the first release, {draft}",
            f"{location} is of a draft from before the first release: import it with "
            "icechunk_format.drafts.import_draft(source, target), then open the target",
        )
    inner = _repository_below(keys)
    if inner is not None:
        url = str(location).rstrip("/")
        return f"a repository is below it, in {inner!r}", f"open {url}/{inner}"
    if any(found.key.startswith(f"{REFS}branch.") for found in storage.list(REFS)):
        return (
            "the location has files of a repository of version 1, but not branch 'main', which an "
            "upgrade to version 2 deletes: one was interrupted or lost its 'repo' object, or a "
            "copy of the repository is incomplete",
            f"{location} is half upgraded: put {REPO!r} back from a copy, or {MAIN_REF} with the "
            "snapshot of main, then finish with Repository.upgrade() or 'icechunk-spark upgrade'",
        )
    if any(key.startswith((SNAPSHOTS, REFS)) for key in keys):
        return (
            "the location has files of a repository, but not the one that every read starts with: "
            "it was deleted, or a copy of the repository is incomplete",
            None,
        )
    return f"the location holds other files, such as {sorted(keys)[0]!r}", None


def _draft(storage: Storage) -> str | None:
    """Describe the file that identifies a draft (see the package ``drafts``), or return None."""
    for found in storage.list("r/"):
        if _DRAFT_BRANCH.fullmatch(found.key):
            return f"with branch files such as {found.key!r}"
    if storage.head("state.json") is not None and any(True for _ in storage.list("s/")):
        return "with the state file 'state.json'"
    return None


def _repository_above(location: Location) -> tuple[str, str] | None:
    """Return the URL of a repository in a parent folder, and the path below it."""
    url, below = location.url.rstrip("/"), ""
    for _ in range(_MOST_PARENTS):
        parent_url, _, name = url.rpartition("/")
        if not name or parent_url.endswith(("/", ":")) or not parent_url:
            return None
        url, below = parent_url, f"/{name}{below}"
        parent = Location(url, client=location.client, options=location.options)
        if has_repository(open_storage(parent)):
            return str(parent), below
    return None


def _repository_below(keys: list[str]) -> str | None:
    for key in keys:
        for marker in (f"/{REPO}", f"/{MAIN_REF}"):
            if key.endswith(marker):
                return key.removesuffix(marker)
    return None
