"""Adds virtual chunk containers to a repository for the references of a write.

Other libraries fetch a virtual chunk only if the configuration has a container for its prefix, so a
write of virtual references adds missing containers. If the repository has none, one is added for
each bucket or host, and one for the common folder of local files; otherwise, the prefixes that the
write authorizes are added. A container does not authorize access: each reader must authorize it.

Readers compare the location of a local file percent-decoded with the prefixes of containers, as the
reference library does: the container of ``file:///a%20b/c`` is ``file:///a b/``.

Specification: "Virtual chunk containers".
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from icechunk_format.encoding.config.config import VirtualChunkContainer
from icechunk_format.errors import InvalidInputError
from icechunk_format.repository.chunks.virtual_url import MalformedUrlError, parse_url
from icechunk_format.storage.location import Location
from icechunk_format.storage.options import parse_options, relevant_options

if TYPE_CHECKING:
    from icechunk_format.repository import Repository

NAMED: Final = "vcc://"
_FILE: Final = "file://"
_ROOT: Final = r"^(?P<root>[a-z][a-z0-9+.-]*://[^/]+/)"
_STORE_KINDS: Final = {"s3": "s3", "gs": "gcs", "az": "azure", "http": "http"}
_S3_OPTIONS: Final = {
    "region": "region",
    "endpoint_url": "endpoint_url",
    "anon": "anonymous",
    "allow_http": "allow_http",
    "requester_pays": "requester_pays",
}


def outside_of(locations: pa.Array, containers: Iterable[VirtualChunkContainer]) -> pa.Array:
    """Return the locations outside of all containers."""
    compared = _compared(locations)
    for container in containers:
        is_inside = pc.starts_with(compared, container.url_prefix)
        if container.name is not None:
            named = pc.starts_with(compared, f"{NAMED}{container.name}/")
            is_inside = pc.or_(is_inside, named)
        is_outside = pc.invert(is_inside)
        locations, compared = locations.filter(is_outside), compared.filter(is_outside)
    return locations


def _compared(locations: pa.Array) -> pa.Array:
    """Return locations in the form that readers compare: local files percent-decoded."""
    is_encoded = pc.match_substring_regex(locations, "^file://.*%")
    if not pc.any(is_encoded).as_py():
        return locations
    plain = [unquote(string) for string in locations.filter(is_encoded).to_pylist()]
    return pc.replace_with_mask(locations, is_encoded, pa.array(plain, locations.type))


def _plain(string: str) -> str:
    return unquote(string) if string.startswith(_FILE) else string


def check_prefix(prefix: str) -> None:
    """Raise InvalidInputError for a local folder whose name has special characters of URLs."""
    if prefix.startswith(_FILE) and f"{_FILE}{parse_url(prefix).path}" != prefix:
        raise InvalidInputError(
            f"readers cannot find files below {prefix!r}, since '#', '?' and '%' with two digits "
            "have another meaning in a URL; rename the folder, or add a virtual chunk container "
            "for a folder above it to the configuration",
            place=prefix,
        )


def authorized_prefixes(
    locations: pa.Array, authorized: Sequence[str]
) -> tuple[set[str], pa.Array]:
    """Return the authorized prefixes that match locations, and the locations without a match."""
    found: set[str] = set()
    for string in authorized:
        prefix = _plain(string.rstrip("/") + "/")
        is_below = pc.starts_with(_compared(locations), prefix)
        if pc.any(is_below).as_py():
            found.add(prefix)
            locations = locations.filter(pc.invert(is_below))
    return found, locations


def prefixes_of(locations: pa.Array) -> set[str]:
    """Return the buckets and hosts of locations, and the folder that local files share."""
    is_file = pc.starts_with(locations, _FILE)
    roots = pc.extract_regex(locations.filter(pc.invert(is_file)), _ROOT)
    found = set(pc.unique(roots.field("root").drop_null()).to_pylist()) if len(roots) else set()
    files = _compared(locations.filter(is_file))
    if len(files):
        ends = pc.min_max(files)
        found.add(_folder([ends["min"].as_py(), ends["max"].as_py()]))
    return found


def _folder(strings: list[str]) -> str:
    # Compares characters, since URLs are not paths; the last name is cut off.
    return os.path.commonprefix(strings).rpartition("/")[0] + "/"  # noqa: RUF071


def add_containers(
    repository: Repository,
    prefixes: Iterable[str],
    *,
    authorized: Sequence[str],
    virtual_options: Mapping[str, str],
) -> None:
    """Add containers for prefixes that no container of the repository covers."""
    kept = {_plain(string.rstrip("/") + "/") for string in authorized}
    wanted = set(prefixes)
    # Join the folders of tasks, which each found the common folder of their own files.
    files = sorted(p for p in wanted if p.startswith(_FILE) and p not in kept)
    if files:
        wanted = (wanted - set(files)) | {_folder([files[0], files[-1]])}
    known = [c.url_prefix for c in repository.config.virtual_chunk_containers]
    added: dict[str, VirtualChunkContainer] = {}
    for prefix in sorted(wanted):  # the shorter one first, which covers the longer
        if any(prefix.startswith(other) for other in [*known, *added]):
            continue
        container = _container(prefix, virtual_options)
        if container is not None:
            added[prefix] = container
    if added:
        repository.update_config({"virtual_chunk_containers": added})


def _container(prefix: str, virtual_options: Mapping[str, str]) -> VirtualChunkContainer | None:
    """Return a container without credentials; None for storage that a configuration cannot name."""
    check_prefix(prefix)
    try:
        parts = parse_url(prefix)
    except MalformedUrlError:
        return None
    if parts.scheme == "file":
        return VirtualChunkContainer(
            url_prefix=prefix, store_kind="local_file_system", store_options={"path": parts.path}
        )
    kind = Location(f"{parts.scheme}://{parts.authority}").address.kind
    if kind not in _STORE_KINDS:
        return None
    given = parse_options(kind, relevant_options(kind, virtual_options))
    options: dict[str, Any] = {}
    store_kind = _STORE_KINDS[kind]
    if kind == "s3":
        for name, stored in _S3_OPTIONS.items():
            if name in given:
                is_string = stored in ("region", "endpoint_url")
                options[stored] = given[name] if is_string else given[name] == "true"
        if "virtual_hosted_style" in given:
            options["force_path_style"] = given["virtual_hosted_style"] != "true"
        if "endpoint_url" in options:
            store_kind = "s3_compatible"
            # By default, readers assume Amazon's servers.
            options.setdefault("force_path_style", True)
            if options["endpoint_url"].startswith("http://"):
                options.setdefault("allow_http", True)
    elif kind == "az" and "account_name" in given:
        options["account"] = given["account_name"]
    return VirtualChunkContainer(url_prefix=prefix, store_kind=store_kind, store_options=options)
