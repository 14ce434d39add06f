"""A configuration that we change is the one that the reference reads, and the other way round."""

from contextlib import suppress

import icechunk
import pytest
import yaml

from icechunk_format.encoding.config.changes import changed_tree
from icechunk_format.encoding.config.config import VirtualChunkContainer, parse_config
from icechunk_format.encoding.config.settings import SETTINGS
from icechunk_format.encoding.repo_info.updates import UpdateKind
from icechunk_format.encoding.splitting import ArrayCondition, DimensionRule, SplittingRule
from icechunk_format.errors import InvalidInputError
from icechunk_format.repository import Repository

CHANGES = {
    "inline_chunk_threshold_bytes": 33,
    "get_partial_values_concurrency": 3,
    "compression": {"algorithm": "zstd", "level": 9},
    "max_concurrent_requests": 12,
    "max_concurrent_decodes": 2,
    "caching": {"num_snapshot_nodes": 1, "num_chunk_refs": 2, "num_transaction_changes": 3,
                "num_bytes_attributes": 4, "num_bytes_chunks": 5},
    "storage": {
        "concurrency": {"max_concurrent_requests_for_object": 2,
                        "ideal_concurrent_request_size": 1000},
        "retries": {"max_tries": 2, "initial_backoff_ms": 3, "max_backoff_ms": 4},
        "timeouts": {"connect_timeout_ms": 1, "read_timeout_ms": 2, "operation_timeout_ms": 3,
                     "operation_attempt_timeout_ms": 4},
        "unsafe_use_conditional_update": False,
        "unsafe_use_conditional_create": False,
        "unsafe_use_metadata": False,
        "storage_class": "STANDARD",
        "metadata_storage_class": "A",
        "chunks_storage_class": "B",
        "minimum_size_for_multipart_upload": 1000,
    },
    "manifest": {
        "preload": {"max_total_refs": 5, "max_arrays_to_scan": 6},
        "virtual_chunk_location_compression": {
            "min_num_chunks": 7, "dictionary_max_training_samples": 8,
            "dictionary_max_size_bytes": 9, "compression_level": 4,
        },
        "max_concurrent_manifest_fetches_during_commit": 3,
        "splitting": (
            SplittingRule(
                condition=ArrayCondition(
                    kind="and",
                    parts=(
                        ArrayCondition(kind="path_matches", pattern="^/g"),
                        ArrayCondition(kind="name_matches", pattern="no"),
                    ),
                ),
                dimensions=(
                    DimensionRule(by="axis", value=0, num_chunks=3),
                    DimensionRule(by="dimension_name", value="1", num_chunks=4),
                    DimensionRule(by="any", num_chunks=5),
                ),
            ),
        ),
    },
    "repo_update_retries": {
        "default": {"max_tries": 5, "initial_backoff_ms": 6, "max_backoff_ms": 7}
    },
    "num_updates_per_repo_info_file": 100,
    "virtual_chunk_containers": [
        VirtualChunkContainer(name="s", url_prefix="s3://a/", store_kind="s3",
                              store_options={"region": "no", "anonymous": True}),
        VirtualChunkContainer(url_prefix="s3://b/", store_kind="s3_compatible",
                              store_options={"endpoint_url": "http://x", "allow_http": True}),
        VirtualChunkContainer(url_prefix="tigris://c/", store_kind="tigris"),
        VirtualChunkContainer(url_prefix="gcs://d/", store_kind="gcs",
                              store_options={"retries": "1"}),
        VirtualChunkContainer(url_prefix="azure://e/", store_kind="azure"),
        VirtualChunkContainer(url_prefix="https://f/", store_kind="http"),
        VirtualChunkContainer(url_prefix="file:///g/", store_kind="local_file_system",
                              store_options={"path": "/g"}),
    ],
}  # fmt: skip
LIBRARY_ONLY = {"previous_file", "preload_if"}


def place(path):
    return icechunk.local_filesystem_storage(str(path))


def unset_of(tree):
    """Return a tree without its empty branches."""
    if not isinstance(tree, dict):
        return tree
    below = {key: unset_of(value) for key, value in tree.items() if key not in LIBRARY_ONLY}
    return {key: value for key, value in below.items() if value not in (None, {})}


@pytest.mark.parametrize("spec_version", [1, 2])
def test_every_setting_that_we_store_is_read_by_the_reference(tmp_path, spec_version):
    icechunk.Repository.create(place(tmp_path), spec_version=spec_version)
    ours = Repository.open(str(tmp_path))
    ours.update_config(CHANGES)
    read = icechunk.Repository.fetch_config(place(tmp_path))
    assert read is not None
    assert read.inline_chunk_threshold_bytes == 33
    assert read.compression.level == 9
    assert read.caching.num_bytes_chunks == 5
    assert read.storage.retries.max_backoff_ms == 4
    assert read.storage.timeouts.operation_attempt_timeout_ms == 4
    assert read.storage.chunks_storage_class == "B"
    assert read.manifest.preload.max_arrays_to_scan == 6
    assert read.repo_update_retries.default.initial_backoff_ms == 6
    assert set(read.virtual_chunk_containers) == {
        item.url_prefix for item in CHANGES["virtual_chunk_containers"]
    }
    assert read.virtual_chunk_containers["s3://a/"].name == "s"
    opened = icechunk.Repository.open(place(tmp_path))
    wanted = ours.config.raw
    # What the reference stores of what it has read is what we stored, setting by setting.
    other = icechunk.RepositoryConfig.default()
    other.max_concurrent_requests = 13
    opened.save_config()
    assert unset_of(ours.config.raw) == unset_of(wanted)
    if spec_version == 2:
        kinds = [update.kind for update in ours.operations()]
        assert kinds[-2] is UpdateKind.CONFIG_CHANGED
        theirs = [type(update.kind).__name__ for update in opened.ops_log()]
        assert "ConfigChanged" in str(list(opened.ops_log())[-2].kind), theirs


@pytest.mark.parametrize("spec_version", [1, 2])
def test_what_the_reference_stored_survives_our_changes(tmp_path, spec_version):
    config = icechunk.RepositoryConfig.default()
    config.max_concurrent_requests = 11
    config.manifest = icechunk.ManifestConfig(
        preload=icechunk.ManifestPreloadConfig(
            max_total_refs=5,
            preload_if=icechunk.ManifestPreloadCondition.or_conditions(
                [
                    icechunk.ManifestPreloadCondition.num_refs(1, 10),
                    icechunk.ManifestPreloadCondition.name_matches("x"),
                ]
            ),
        ),
    )
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer("s3://b/x/", icechunk.s3_store(region="us-east-1"))
    )
    repository = icechunk.Repository.create(
        place(tmp_path), config=config, spec_version=spec_version
    )
    repository.save_config()
    ours = Repository.open(str(tmp_path))
    before = ours.config.raw
    ours.update_config(
        {
            "manifest": {"preload": {"max_total_refs": 6}},
            "virtual_chunk_containers": {"file:///d/": {"store": {"local_file_system": "/d"}}},
        }
    )
    after = ours.config.raw
    assert after["manifest"]["preload"].pop("max_total_refs") == 6
    assert before["manifest"]["preload"].pop("max_total_refs") == 5
    assert after["virtual_chunk_containers"].pop("file:///d/")
    assert after == before
    read = icechunk.Repository.fetch_config(place(tmp_path))
    assert set(read.virtual_chunk_containers) == {"s3://b/x/", "file:///d/"}
    assert read.manifest.preload.max_total_refs == 6
    assert str(read.manifest.preload.preload_if) == str(config.manifest.preload.preload_if)
    assert read.max_concurrent_requests == 11


def settings_in(known, path=()):
    for key, setting in known.items():
        if isinstance(setting, dict):
            yield from settings_in(setting, (*path, key))
        else:
            yield (*path, key)


def opened_by_reference(folder, tree):
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    try:
        icechunk.Repository.open(place(folder))
    except icechunk.IcechunkError:
        return False
    return True


@pytest.mark.parametrize("path", list(settings_in(SETTINGS)), ids=".".join)
def test_no_limit_of_ours_is_another_than_that_of_the_reference(tmp_path, path):
    """What we store the reference opens, and what the reference opens we open."""
    icechunk.Repository.create(place(tmp_path), spec_version=1)
    numbers = {sign * 2**bits + more for bits in (0, 3, 8, 15, 16, 31, 32, 63, 64)
               for sign in (-1, 1) for more in (-1, 0, 1)}  # fmt: skip
    for value in (*sorted(numbers), True, False, "zstd", "x", 0.5, 3.0):
        tree = value
        for key in reversed(path):
            tree = {key: tree}
        opens = opened_by_reference(tmp_path, tree)
        if opens and not (path[-1].endswith("storage_class") and not isinstance(value, str)):
            parse_config(tree)
        try:
            changed_tree({}, tree)
        except InvalidInputError:
            continue
        assert opens, f"we store {tree}, and the reference cannot open the repository"


OF_CHECKSUMS = ("crc32", "crc32c", "crc64_nvme", "sha1", "sha256", "CRC32", "md5", "")


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"virtual_chunk_containers": {"s3://b/": {"store": {"s3": {name: value}}}}}
            for name, value in (
                *(("checksum_algorithm", value) for value in OF_CHECKSUMS),
                *(("network_stream_timeout_seconds", n) for n in (-1, 0, 2**32 - 1, 2**32)),
            )
        ),
        *(
            {"manifest": {"splitting": [["any_array", [{"condition": on, "num_chunks": n}]]]}}
            for on, n in (
                *(({"Axis": axis}, 1) for axis in (-1, 0, True, 2**32, 2**64 - 1, 2**64)),
                *(("Any", n) for n in (0, 1, 2**32 - 1, 2**32)),
            )
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("spec_version", [1, 2])
def test_what_containers_and_rules_say_is_refused_or_read(tmp_path, spec_version, changes):
    icechunk.Repository.create(place(tmp_path), spec_version=spec_version)
    ours = Repository.open(str(tmp_path))
    with suppress(InvalidInputError):
        ours.update_config(changes)
    icechunk.Repository.open(place(tmp_path))


@pytest.mark.parametrize("spec_version", [1, 2])
@pytest.mark.parametrize("bound", ["low", "high"])
def test_the_reference_reads_every_setting_at_its_limits(tmp_path, spec_version, bound):
    def at_limits(known):
        return {
            key: at_limits(item) if isinstance(item, dict) else getattr(item, bound)
            for key, item in known.items()
            if (isinstance(item, dict) and item) or getattr(item, "type", None) is int
        }

    icechunk.Repository.create(place(tmp_path), spec_version=spec_version)
    Repository.open(str(tmp_path)).update_config(at_limits(SETTINGS))
    read = icechunk.Repository.fetch_config(place(tmp_path))
    wanted = SETTINGS["manifest"]["virtual_chunk_location_compression"]
    locations = read.manifest.virtual_chunk_location_compression
    assert locations.min_num_chunks == getattr(wanted["min_num_chunks"], bound)
    assert read.caching.num_bytes_chunks == getattr(SETTINGS["caching"]["num_bytes_chunks"], bound)
