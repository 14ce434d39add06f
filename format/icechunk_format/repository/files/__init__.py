"""Fetches, decodes, caches and stores the files of a repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.repository.files.bounded_reads import (
        ListedManifests,
        cut_into_boxes,
        manifest_keys,
        references_in,
    )
    from icechunk_format.repository.files.chunk_lookup import refs_of_array
    from icechunk_format.repository.files.manifest_files import (
        MAX_REFS_PER_MANIFEST,
        ManifestFormat,
        ManifestReceipt,
        store_manifests,
    )
    from icechunk_format.repository.files.metadata_files import (
        Loaded,
        load_manifests,
        load_snapshot,
        load_transaction_log,
        metadata_cache,
    )

__all__ = [
    "MAX_REFS_PER_MANIFEST",
    "ListedManifests",
    "Loaded",
    "ManifestFormat",
    "ManifestReceipt",
    "cut_into_boxes",
    "load_manifests",
    "load_snapshot",
    "load_transaction_log",
    "manifest_keys",
    "metadata_cache",
    "references_in",
    "refs_of_array",
    "store_manifests",
]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".bounded_reads": ["ListedManifests", "cut_into_boxes", "manifest_keys", "references_in"],
        ".chunk_lookup": ["refs_of_array"],
        ".manifest_files": [
            "MAX_REFS_PER_MANIFEST",
            "ManifestFormat",
            "ManifestReceipt",
            "store_manifests",
        ],
        ".metadata_files": [
            "Loaded",
            "load_manifests",
            "load_snapshot",
            "load_transaction_log",
            "metadata_cache",
        ],
    },
)
