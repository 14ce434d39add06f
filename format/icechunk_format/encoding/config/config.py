"""Reads the repository's configuration: FlexBuffers in ``repo``, or ``config.yaml`` in version 1.

Rules of this file
------------------
1. A missing key or a null means the default. Unknown keys are ignored, but kept in ``raw``, which
   is written back.
2. Values of known keys must have the type of their default, or ``FormatError`` is raised. A
   number that existing libraries accept but that zstd or this library cannot use is read as the
   nearest usable one; ``raw`` keeps the number.
3. In YAML a tag ``!t`` becomes the map ``{t: value}``, the form that FlexBuffers have.
4. The ``storage`` settings describe the machine that saved them, so they are never applied: in a
   repository copied from disk to S3 they would disable conditional writes.
5. Virtual chunk containers whose prefix does not end with "/" are ignored, as in the reference
   implementation.

Spec: ``Repo.config``; the defaults are those of the reference implementation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from icechunk_format.encoding.config.settings import DEFAULTS
from icechunk_format.encoding.manifest.location_dictionary import LocationCompression
from icechunk_format.encoding.object_keys import CONFIG_YAML, REPO
from icechunk_format.encoding.splitting import NO_SPLITTING, SplittingRule, parse_rules
from icechunk_format.encoding.values.flexbuffers import decode_flexbuffer
from icechunk_format.encoding.values.yaml_tree import bad_tree, decode_yaml

_MAX_U16: Final = 2**16 - 1
_MAX_LEVEL: Final = 22
_MAX_DICTIONARY: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualChunkContainer:
    """A location outside the repository that may hold chunks.

    Parameters
    ----------
    name
        The name in ``vcc://name/...`` locations; None if the container is unnamed.
    url_prefix
        The prefix of absolute locations in it; ends with "/".
    store_kind
        ``s3``, ``s3_compatible``, ``tigris``, ``gcs``, ``azure``, ``http``, ``local_file_system``,
        ``in_memory``, or an unknown kind.
    store_options
        Options of the storage as stored, never credentials. ``local_file_system`` has the option
        ``path``, its folder.
    """

    name: str | None = None
    url_prefix: str
    store_kind: str
    store_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryConfig:
    """The settings of a repository that affect readers and writers of its files.

    Parameters
    ----------
    inline_chunk_threshold_bytes
        Encoded chunks of up to this many bytes are stored in the manifest.
    compression_level
        The zstd level of metadata files.
    virtual_chunk_containers
        Sorted by prefix.
    splitting
        The rules that split references over manifests.
    num_updates_per_repo_info_file
        Entries of the operations log that one ``repo`` object keeps.
    previous_file
        Name of the backup that the configuration replaced, if recorded.
    raw
        The whole tree as stored.
    """

    inline_chunk_threshold_bytes: int = 512
    compression_level: int = 3
    virtual_chunk_containers: tuple[VirtualChunkContainer, ...] = ()
    splitting: tuple[SplittingRule, ...] = NO_SPLITTING
    location_compression: LocationCompression = field(default_factory=LocationCompression)
    num_updates_per_repo_info_file: int = 1000
    previous_file: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict)

    def effective(self) -> dict[str, Any]:
        """Return the whole tree, with defaults for missing and null settings."""
        return _merged(DEFAULTS, self.raw)


def decode_flexbuffer_config(data: bytes) -> RepositoryConfig:
    """Read the configuration in a ``repo`` object."""
    tree = decode_flexbuffer(data, object_key=REPO, field="config", file_type="configuration")
    return parse_config(tree, object_key=REPO)


def decode_yaml_config(data: bytes) -> RepositoryConfig:
    """Read the file ``config.yaml`` of spec version 1."""
    return parse_config(decode_yaml(data, object_key=CONFIG_YAML), object_key=CONFIG_YAML)


def parse_config(tree: object, *, object_key: str = "<tree>") -> RepositoryConfig:
    """Read a configuration tree."""
    if not isinstance(tree, Mapping | None):
        bad_tree(f"a configuration must be a map, found {type(tree).__name__}", object_key)
    given = dict(tree or {})
    _check_types(DEFAULTS, given, object_key, "")
    full = _merged(DEFAULTS, given)
    manifest = full["manifest"]
    splitting = manifest.get("splitting")
    sizes = splitting.get("split_sizes") if isinstance(splitting, dict) else splitting
    previous = full.get("previous_file")
    if previous is not None and not isinstance(previous, str):
        bad_tree(f"{previous!r} is not a name", object_key, "previous_file")
    if full["inline_chunk_threshold_bytes"] > _MAX_U16:
        bad_tree(
            f"{full['inline_chunk_threshold_bytes']} is above {_MAX_U16}",
            object_key,
            "inline_chunk_threshold_bytes",
        )
    locations = manifest["virtual_chunk_location_compression"]
    return RepositoryConfig(
        inline_chunk_threshold_bytes=full["inline_chunk_threshold_bytes"],
        compression_level=min(full["compression"]["level"], _MAX_LEVEL),
        virtual_chunk_containers=_containers(full["virtual_chunk_containers"], object_key),
        splitting=NO_SPLITTING if sizes is None else parse_rules(sizes, object_key),
        location_compression=LocationCompression(
            min_num_chunks=locations["min_num_chunks"],
            dictionary_max_training_samples=locations["dictionary_max_training_samples"],
            dictionary_max_size_bytes=min(locations["dictionary_max_size_bytes"], _MAX_DICTIONARY),
            compression_level=max(1, min(locations["compression_level"], _MAX_LEVEL)),
        ),
        num_updates_per_repo_info_file=max(1, full["num_updates_per_repo_info_file"]),
        previous_file=previous,
        raw=given,
    )


def _check_types(
    defaults: Mapping[str, Any], given: Mapping[str, Any], object_key: str, prefix: str
) -> None:
    """Raise unless every known setting has the type of its default."""
    for key, default in defaults.items():
        value = given.get(key)
        if value is None:
            continue
        setting = f"{prefix}{key}"
        if type(value) is not type(default):
            bad_tree(f"{type(default).__name__} is expected, found {value!r}", object_key, setting)
        if isinstance(value, dict):
            _check_types(default, value, object_key, f"{setting}.")
        elif isinstance(value, int) and value < 0 and key != "compression_level":
            bad_tree(f"{value} is negative", object_key, setting)


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(given)
    for key, default in defaults.items():
        value = given.get(key)
        if isinstance(default, dict):
            merged[key] = _merged(default, value if isinstance(value, dict) else {})
        elif value is None:
            merged[key] = default
    return merged


def _containers(tree: Mapping[str, Any], object_key: str) -> tuple[VirtualChunkContainer, ...]:
    found = {}
    for key, item in tree.items():
        setting = f"virtual_chunk_containers.{key}"
        if not isinstance(item, dict):
            bad_tree(f"a container must be a map, found {item!r}", object_key, setting)
        prefix = key if item.get("url_prefix") is None else item["url_prefix"]
        name = item.get("name")
        if not isinstance(prefix, str) or not (name is None or isinstance(name, str)):
            bad_tree("name and url_prefix of a container must be strings", object_key, setting)
        if not prefix.endswith("/"):
            continue
        kind, options = _store(item.get("store"), object_key, setting)
        found[prefix] = VirtualChunkContainer(
            name=name, url_prefix=prefix, store_kind=kind, store_options=options
        )
    return tuple(found[prefix] for prefix in sorted(found))


def _store(tree: Any, object_key: str, setting: str) -> tuple[str, Mapping[str, Any]]:
    if isinstance(tree, str):
        return tree, {}
    if not isinstance(tree, dict) or len(tree) != 1:
        bad_tree(f"a store must be one kind with options, found {tree!r}", object_key, setting)
    ((kind, options),) = tree.items()
    if isinstance(options, str):
        return kind, {"path": options}
    if options is None:
        return kind, {}
    if not isinstance(options, dict):
        bad_tree(f"options of a store must be a map, found {options!r}", object_key, setting)
    return kind, options
