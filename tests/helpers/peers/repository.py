"""Our repositories with the methods of the reference's compiled ``PyRepository``.

Long because the reference has all of these methods in one class.
"""

from __future__ import annotations

import datetime
import json
import pickle
import tempfile
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from helpers.peers import native
from helpers.peers.session import Diff, PySession
from helpers.peers.store import view_of

from icechunk_format import maintenance
from icechunk_format.encoding.config.config import parse_config
from icechunk_format.encoding.ids import encode_many
from icechunk_format.encoding.repo_info.updates import (
    Availability,
    ConfigChangedUpdate,
    RepoInitializedUpdate,
)
from icechunk_format.errors import InvalidInputError
from icechunk_format.repository.files import ManifestFormat
from icechunk_format.repository.session import WriteSession
from icechunk_format.workflows.merging.repository import Repository

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from icechunk_format.encoding.repo_info.updates import Update

_FLAGS = {3: "move_node", 4: "create_tag", 5: "delete_tag"}


def _time(microseconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(
        microseconds=microseconds
    )


@dataclass(frozen=True)
class SnapshotInfo:
    """Entry of a snapshot in a history."""

    id: str
    parent_id: str | None
    written_at: datetime.datetime
    message: str
    metadata: dict[str, Any] = field(hash=False)

    @classmethod
    def of(cls, info: Any) -> SnapshotInfo:
        parent = None if info.parent_id is None else str(info.parent_id)
        return cls(str(info.id), parent, _time(info.flushed_at), info.message, info.metadata)


class UpdateType:
    """Kinds of entries of the operations log; a class for each is made below."""


for _name in (
    *("BranchCreated", "BranchDeleted", "BranchReset", "CommitAmended", "ConfigChanged"),
    *("ExpirationRan", "FeatureFlagChanged", "GCRan", "MetadataChanged", "NewCommit"),
    *("NewDetachedSnapshot", "RepoInitialized", "RepoMigrated", "RepoStatusChanged"),
    *("TagCreated", "TagDeleted"),
):
    setattr(UpdateType, _name, type(_name, (UpdateType, SimpleNamespace), {}))


# -- configurations ------------------------------------------------------------------------------


def tree_of(config: Any) -> dict[str, Any]:
    """Return the tree that the reference stores for a configuration."""
    if config is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        storage = native.REAL["Storage"].new_local_filesystem(folder)
        made = native.REAL["PyRepository"].create(storage, config=config)
        made.save_config()
        tree: dict[str, Any] = _given(Repository.open(folder).config.raw)
        return tree


def _given(tree: Any) -> Any:
    """Return a tree without nulls, which stand for defaults."""
    if not isinstance(tree, dict):
        return tree
    return {key: _given(value) for key, value in tree.items() if value is not None}


def config_of(tree: Mapping[str, Any]) -> Any:
    """Return the reference's configuration that has a tree."""
    with tempfile.TemporaryDirectory() as folder:
        Repository.create(folder).update_config(_changes(tree))
        storage = native.REAL["Storage"].new_local_filesystem(folder)
        found = native.REAL["PyRepository"].fetch_config(storage)
        return native.compiled().RepositoryConfig.default() if found is None else found


def _changes(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a tree that ``update_config`` takes."""
    changes = {key: value for key, value in _given(dict(tree)).items() if key != "previous_file"}
    changes.get("manifest", {}).get("preload", {}).pop("preload_if", None)
    return changes


def _version(number: int) -> Any:
    return getattr(native.compiled().SpecVersion, f"v{number}")


# -- repositories --------------------------------------------------------------------------------


@native.as_reference
class PyRepository:
    def __init__(
        self,
        repository: Repository,
        given: Mapping[str, Any],
        authorized: Mapping[str, Any] | None = None,
        default_metadata: dict[str, Any] | None = None,
    ) -> None:
        self.repository = repository
        self.given = dict(given)
        self.authorized = dict(authorized or {})
        self.default_metadata = default_metadata or {}
        self.attribution = None

    def __reduce__(self) -> tuple[Any, ...]:
        prefixes = dict.fromkeys(self.authorized)
        return PyRepository, (self.repository, self.given, prefixes, self.default_metadata)

    @classmethod
    def create(
        cls,
        storage: native.Storage,
        *,
        config: Any = None,
        authorize_virtual_chunk_access: Any = None,
        spec_version: Any = None,
        check_clean_root: bool = True,
        attribution: Any = None,
    ) -> PyRepository:
        try:
            version = 2 if spec_version is None else int(spec_version)
        except ValueError:
            raise ValueError("Couldn't parse a valid version") from None
        if version not in (1, 2):
            raise ValueError(f"Unsupported version {version}")
        tree = tree_of(config)
        repository = Repository.create(
            storage.location, spec_version=version, check_clean_root=check_clean_root
        )
        made = cls(repository, tree, authorize_virtual_chunk_access)
        if config is not None:
            made._store_config()
        return made

    @classmethod
    def open(
        cls,
        storage: native.Storage,
        *,
        config: Any = None,
        authorize_virtual_chunk_access: Any = None,
        attribution: Any = None,
    ) -> PyRepository:
        repository = Repository.open(storage.location)
        return cls(repository, tree_of(config), authorize_virtual_chunk_access)

    @classmethod
    def open_or_create(
        cls, storage: native.Storage, *, create_version: Any = None, **given: Any
    ) -> PyRepository:
        if Repository.exists(storage.location):
            given.pop("check_clean_root", None)
            return cls.open(storage, **given)
        return cls.create(storage, spec_version=create_version, **given)

    @staticmethod
    def exists(storage: native.Storage, storage_settings: Any = None) -> bool:
        return Repository.exists(storage.location)

    @staticmethod
    def fetch_spec_version(storage: native.Storage, storage_settings: Any = None) -> Any:
        found = Repository.find(storage.location)
        return None if found is None else _version(found.spec_version)

    @staticmethod
    def fetch_config(storage: native.Storage) -> Any:
        found = Repository.open(storage.location)
        return config_of(found.config.raw) if found.config.raw else None

    @property
    def spec_version(self) -> Any:
        return _version(self.repository._version_now())

    def as_bytes(self) -> bytes:
        return pickle.dumps(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> PyRepository:
        found: PyRepository = pickle.loads(data)
        return found

    # -- settings -------------------------------------------------------------------------------

    def tree(self) -> dict[str, Any]:
        """Return the stored configuration, with what was given when this object was made."""
        return {**_given(dict(self.repository.config.raw)), **self.given}

    def config(self) -> Any:
        return config_of(self.tree())

    def save_config(self) -> None:
        self._store_config()

    def _store_config(self) -> None:
        self.repository.update_config(_changes(self.tree()))

    def storage(self) -> native.Storage:
        return native.Storage(self.repository.location)

    def storage_settings(self) -> Any:
        return native.compiled().StorageSettings()

    @property
    def authorized_virtual_container_prefixes(self) -> set[str]:
        return set(self.authorized)

    def reopen(
        self, *, config: Any = None, authorize_virtual_chunk_access: Any = None
    ) -> PyRepository:
        tree = self.given if config is None else {**self.given, **tree_of(config)}
        access = authorize_virtual_chunk_access
        return PyRepository(
            self.repository,
            tree,
            self.authorized if access is None else access,
            self.default_metadata,
        )

    def chunk_source(self) -> Any:
        containers = parse_config(self.tree()).virtual_chunk_containers
        names = {one.name: one.url_prefix for one in containers}
        prefixes = [names.get(prefix, prefix) for prefix in self.authorized]
        server = native.s3_server() if any(one.startswith("s3:") for one in prefixes) else None
        options = None if server is None else server.storage_options
        source = self.repository.chunk_source(authorized=prefixes, virtual_options=options)
        return replace(source, containers=containers)

    def set_default_commit_metadata(self, metadata: dict[str, Any]) -> None:
        self.default_metadata = dict(metadata)

    def default_commit_metadata(self) -> dict[str, Any]:
        return self.default_metadata

    def get_metadata(self) -> dict[str, Any]:
        if self.repository.spec_version == 1:
            raise InvalidInputError("spec version 1 has no metadata of repositories")
        return self.repository.metadata

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        self.repository.set_metadata(metadata)

    def update_metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        merged = {**self.repository.metadata, **metadata}
        self.repository.set_metadata(merged)
        return merged

    def get_status(self) -> Any:
        status = self.repository.status
        module = native.compiled()
        if status is None:
            return module.RepoStatus(module.RepoAvailability.online)
        return module.RepoStatus(
            getattr(module.RepoAvailability, status.availability.name.lower()),
            _time(status.set_at),
            status.reason,
        )

    def set_status(self, status: Any) -> None:
        is_online = status.availability == native.compiled().RepoAvailability.online
        availability = Availability.ONLINE if is_online else Availability.READ_ONLY
        self.repository.set_status(availability, status.limited_availability_reason)

    def feature_flags(self) -> list[Any]:
        given = self.repository.feature_flags()
        return [
            native.record(
                "FeatureFlag",
                id=number,
                name=name,
                default_enabled=True,
                setting=given.get(number),
                enabled=given.get(number, True),
            )
            for number, name in _FLAGS.items()
        ]

    def enabled_feature_flags(self) -> list[Any]:
        return [flag for flag in self.feature_flags() if flag.enabled]

    def disabled_feature_flags(self) -> list[Any]:
        return [flag for flag in self.feature_flags() if not flag.enabled]

    def set_feature_flag(self, name: str, setting: bool | None) -> None:
        numbers = {name: number for number, name in _FLAGS.items()}
        if name not in numbers:
            raise InvalidInputError(f"unknown feature flag {name!r}")
        self.repository.set_feature_flag(numbers[name], setting)

    # -- refs and history -----------------------------------------------------------------------

    def create_branch(self, branch_name: str, snapshot_id: str) -> None:
        self.repository.create_branch(branch_name, snapshot_id)

    def list_branches(self) -> set[str]:
        return set(self.repository.branches())

    def lookup_branch(self, branch_name: str) -> str:
        return str(self.repository.resolve(branch=branch_name))

    def reset_branch(
        self, branch_name: str, to_snapshot_id: str, from_snapshot_id: str | None = None
    ) -> None:
        self.repository.reset_branch(branch_name, to_snapshot_id, from_snapshot_id)

    def delete_branch(self, branch: str) -> None:
        self.repository.delete_branch(branch)

    def create_tag(self, tag_name: str, snapshot_id: str) -> None:
        self.repository.create_tag(tag_name, snapshot_id)

    def delete_tag(self, tag: str) -> None:
        self.repository.delete_tag(tag)

    def list_tags(self) -> set[str]:
        return set(self.repository.tags())

    def lookup_tag(self, tag: str) -> str:
        return str(self.repository.resolve(tag=tag))

    def lookup_snapshot(self, snapshot_id: str) -> SnapshotInfo:
        return SnapshotInfo.of(self.repository.snapshot_info(snapshot_id))

    @native.iterated
    def async_ancestry(
        self, *, branch: str | None = None, tag: str | None = None, snapshot_id: str | None = None
    ) -> Iterator[SnapshotInfo]:
        for info in self.repository.ancestry(branch=branch, tag=tag, snapshot=snapshot_id):
            yield SnapshotInfo.of(info)

    @native.iterated
    def async_ops_log(self) -> Iterator[Any]:
        updates = list(self.repository.operations())
        # The reference stores a configuration with the new repository, without an entry.
        kinds = [type(one.details) for one in updates[-2:]]
        if kinds == [ConfigChangedUpdate, RepoInitializedUpdate]:
            del updates[-2]
        for update in updates:
            yield native.record(
                "Update",
                kind=_kind_of(update),
                updated_at=_time(update.updated_at),
                backup_path=update.backup_path,
            )

    def list_manifest_files(self, snapshot_id: str) -> list[Any]:
        snapshot = self.repository.snapshot(snapshot_id)
        files = snapshot.manifest_files
        columns = encode_many(files.ids), files.size_bytes.tolist(), files.num_chunk_refs.tolist()
        return [
            native.record("ManifestFileInfo", id=one, size_bytes=size, num_chunk_refs=count)
            for one, size, count in zip(*columns, strict=True)
        ]

    def diff(
        self,
        *,
        from_branch: str | None = None,
        from_tag: str | None = None,
        from_snapshot_id: str | None = None,
        to_branch: str | None = None,
        to_tag: str | None = None,
        to_snapshot_id: str | None = None,
    ) -> Diff:
        resolve = self.repository.resolve
        older = resolve(branch=from_branch, tag=from_tag, snapshot=from_snapshot_id)
        newer = resolve(branch=to_branch, tag=to_tag, snapshot=to_snapshot_id)
        found = self.repository.diff(older, newer)
        return Diff(
            new_groups=set(found.new_groups),
            new_arrays=set(found.new_arrays),
            deleted_groups=set(found.deleted_groups),
            deleted_arrays=set(found.deleted_arrays),
            updated_groups=set(found.updated_groups),
            updated_arrays=set(found.updated_arrays),
            updated_chunks={path: at.tolist() for path, at in found.updated_chunks.items()},
            moved_nodes=[(str(one.from_path), str(one.to_path)) for one in found.moved_nodes],
        )

    def inspect_transaction_log(self, snapshot_id: str, *, pretty: bool = True) -> str:
        """Return the part of the reference's document that its tests of expiration read."""
        info = self.repository.snapshot_info(snapshot_id)
        merged = [str(one) for one in info.pruned_ancestor_tx_logs]
        root = list(self.repository.ancestry(snapshot=snapshot_id))[-1].id
        missing = list(self.repository.diff(root, info.id).missing_logs)
        composite = {"merged_pruned_ancestor_tx_logs": merged, "missing_tx_logs": missing}
        return json.dumps({"synthetic_composite": composite if merged else None})

    # -- sessions -------------------------------------------------------------------------------

    def readonly_session(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime.datetime | None = None,
    ) -> PySession:
        if sum(one is not None for one in (branch, tag, snapshot_id)) != 1:
            raise ValueError("Must provide either branch, tag, or snapshot_id")
        view = view_of(self.repository, branch=branch, tag=tag, snapshot=snapshot_id, as_of=as_of)
        return PySession(self, view, "readonly")

    def writable_session(self, branch: str) -> PySession:
        return PySession(self, self._session(branch), "writable")

    def rearrange_session(self, branch: str) -> PySession:
        session = self._session(branch)
        session._tip.check_moves()
        return PySession(self, session, "rearrange")

    def _session(self, branch: str) -> WriteSession:
        session = self.repository.writable_session(branch)
        format = ManifestFormat(
            spec_version=self.repository.spec_version, config=parse_config(self.tree())
        )
        return WriteSession(session._storage, session._tip, session._tree.base, format)

    # -- maintenance ----------------------------------------------------------------------------

    def expire_snapshots(
        self,
        older_than: datetime.datetime,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
    ) -> set[str]:
        result = self.repository.expire_snapshots(
            older_than,
            delete_expired_branches=delete_expired_branches,
            delete_expired_tags=delete_expired_tags,
        )
        return set(result.released_snapshots)

    def rewrite_manifests(
        self,
        message: str,
        *,
        branch: str,
        metadata: dict[str, Any] | None = None,
        commit_method: str = "new_commit",
    ) -> str:
        tree = self.tree().get("manifest") or {}
        result = maintenance.rewrite_manifests(
            self.repository.location,
            branch=branch,
            message=message,
            metadata={**self.default_metadata, **(metadata or {})} or None,
            splitting=tree.get("splitting"),
            amend=commit_method == "amend",
        )
        made = result.commit
        return self.lookup_branch(branch) if made is None else str(made.snapshot_id)

    def garbage_collect(
        self, delete_object_older_than: datetime.datetime, *, dry_run: bool = False, **limits: Any
    ) -> Any:
        found = maintenance.collect_garbage(
            self.repository.location, delete_object_older_than, dry_run=dry_run
        )
        return native.record(
            "GCSummary",
            bytes_deleted=found.bytes_deleted,
            chunks_deleted=found.chunks_deleted,
            manifests_deleted=found.manifests_deleted,
            snapshots_deleted=found.snapshots_deleted,
            attributes_deleted=0,
            transaction_logs_deleted=found.transaction_logs_deleted,
            objects_failed_to_delete=found.objects_failed_to_delete,
            throttled_batches=found.throttled_requests,
            delete_errors=list(found.delete_errors),
            skipped_phases=list(found.skipped_phases),
        )


def upgraded(repo: PyRepository, *, dry_run: bool = True, **limits: Any) -> PyRepository:
    """Upgrade a repository to spec version 2."""
    if repo.repository.spec_version == 2:
        raise native.compiled().IcechunkError("the repository has spec version 2 already")
    repo.repository.upgrade(dry_run=dry_run)
    return PyRepository(repo.repository, repo.given, repo.authorized, repo.default_metadata)


def _kind_of(update: Update) -> Any:
    name = type(update.details).__name__.removesuffix("Update")
    values = {
        key: str(value) if key.endswith("snap_id") else value
        for key in type(update.details).__slots__
        for value in [getattr(update.details, key)]
    }
    if not values.pop("is_set", True):
        values["new_value"] = None
    return getattr(UpdateType, name)(**values)
