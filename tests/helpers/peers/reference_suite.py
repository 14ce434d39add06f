"""Lists the reference's Python tests: those that run over our implementation, and the others.

A pattern of `NOT_APPLICABLE` is that of a test below ``tests/``.
"""

from __future__ import annotations

RUN = (
    "test_array_chunk_iterator.py",
    "test_can_read_old.py",
    "test_commit_properties.py",
    "test_concurrency.py",
    "test_config.py",
    "test_conflicts.py",
    "test_error.py",
    "test_feature_flags.py",
    "test_gc.py",
    "test_manifest_splitting.py",
    "test_migration.py",
    "test_move.py",
    "test_pickle.py",
    "test_regressions.py",
    "test_reindex.py",
    "test_session.py",
    "test_shift.py",
    "test_spec_versions.py",
    "test_store.py",
    "test_store_properties.py",
    "test_timetravel.py",
    "test_virtual_ref.py",
    "test_xarray.py",
    "test_zarr/test_array.py",
    "test_zarr/test_group.py",
    "test_zarr/test_properties.py",
    "test_zarr/test_stateful.py",
    "test_zarr/test_store/test_core.py",
    "test_zarr/test_store/test_icechunk_store.py",
)

S3_IN_FOLDER = ("test_gc.py",)
"""Files whose tests compare times below a second, which our S3 server does not count."""

EXAMPLES = {"test_store_properties.py": 3}
"""Examples of property tests by file, where a file would take many minutes with more."""

_FORKS = "forks of sessions: our executors return receipts of manifests"
_OWN_FORM = "it is about the form of the reference's own objects, texts or logs"
LEFT_OUT = {
    "test_credentials.py": "classes of credentials, which are options for us",
    "test_dask.py": _FORKS,
    "test_dask_array.py": _FORKS,
    "test_debuginfo.py": _OWN_FORM,
    "test_display.py": _OWN_FORM,
    "test_distributed_append.py": _FORKS,
    "test_distributed_writers.py": _FORKS,
    "test_exception_tree.py": _OWN_FORM,
    "test_format_universality.py": "clients of the reference's storages and of its old wheels",
    "test_inspect.py": "documents of its inspection; ours are metadata tables",
    "test_key_layout.py": "an option of its S3 client for repositories at the root of a bucket",
    "test_logs.py": _OWN_FORM,
    "test_redirect_storage.py": "a kind of storage that we do not have",
    "test_request_headers.py": "headers of requests, for which we have no option",
    "test_stateful_compat.py": "two of its wheels at once",
    "test_stateful_parallel_sessions.py": _FORKS,
    "test_stateful_repo_ops.py": (
        "it keeps arrays below an array at the root, or below no root: our sessions refuse the one "
        "and make the group for the other"
    ),
    "test_stats.py": "totals of chunks; ours are rows of metadata tables",
}

_PARENTS = "it makes nodes without parents; our sessions make the groups above a node"
_NULLS = "a configuration object with nulls equals another one; we store no nulls"
NOT_APPLICABLE = {
    "test_commit_properties.py::test_invalid_property_types*": (
        "metadata that are not JSON raise InvalidInputError here, TypeError there"
    ),
    "test_config.py::test_config_fetch*": _NULLS,
    "test_config.py::test_config_save*": _NULLS,
    "test_config.py::test_can_change_deep_config_values*": _NULLS,
    "test_config.py::test_config_from_store*": _NULLS,
    "test_error.py::test_error_message_when_snapshot_deleted*": (
        "our session fails when it opens, its session at the first read"
    ),
    "test_gc.py::test_expire_and_gc*": (
        "it counts manifests, and its commits write one for an array; ours keep older ones beside"
    ),
    "test_move.py::test_moves_amend": (
        "it amends a commit that makes nodes with moves; one commit does either for us"
    ),
    "test_pickle.py::test_pickle_repository*": _OWN_FORM,
    "test_pickle.py::test_pickle_read_only*": _FORKS,
    "test_move.py::test_doesnt_rebase": "we report each conflict of a move, it reports the first",
    "test_regressions.py::test_tag_with_open_session*": (
        "it makes an array below an array, which Zarr forbids and our sessions refuse"
    ),
    "test_session.py::test_session_fork*": _FORKS,
    "test_session.py::test_repository_open_no_list_bucket[[]spec-v1[]]": (
        "it needs a user of the S3 server who must not list; ours has one user"
    ),
    "test_virtual_ref.py::test_public_virtual_refs*": "it reads public buckets, and needs the net",
    "test_virtual_ref.py::test_set_virtual_refs_preserves_url_parts": (
        "it stores a location with a user name and '..', which our readers do not fetch and our "
        "layout refs refuses"
    ),
    "test_zarr/test_store/test_icechunk_store.py::*::test_list[[]*": _PARENTS,
    "test_zarr/test_store/test_icechunk_store.py::*::test_list_empty_path*": _PARENTS,
    "test_zarr/test_store/test_icechunk_store.py::*::test_get_partial_values*": (
        "it expects a suffix to be read as a prefix, against zarr-python"
    ),
}
