"""A change of the configuration keeps all other settings, in both spec versions."""

from dataclasses import replace

import pytest
from helpers.storage.faulty_storage import Fault, FaultyStorage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icechunk_format.encoding.config.changes import changed_tree
from icechunk_format.encoding.config.config import (
    RepositoryConfig,
    VirtualChunkContainer,
    decode_yaml_config,
)
from icechunk_format.encoding.config.yaml_text import encode_yaml_config
from icechunk_format.encoding.object_keys import CONFIG_YAML
from icechunk_format.encoding.repo_info.updates import Availability, UpdateKind
from icechunk_format.encoding.splitting import ArrayCondition, DimensionRule, SplittingRule
from icechunk_format.encoding.values.flexbuffers import encode_flexbuffer
from icechunk_format.errors import (
    CommitOutcomeUnknownError,
    InvalidInputError,
    ReadOnlyError,
    StorageError,
)
from icechunk_format.repository import Repository
from icechunk_format.repository.state.config import change_config

# A loaded machine is no failure.
RELAXED = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])

RULES = (
    SplittingRule(
        condition=ArrayCondition(
            kind="or",
            parts=(
                ArrayCondition(kind="name_matches", pattern="^t"),
                ArrayCondition(kind="any_array"),
            ),
        ),
        dimensions=(
            DimensionRule(by="dimension_name", value="time", num_chunks=10),
            DimensionRule(by="axis", value=0, num_chunks=7),
            DimensionRule(by="any", num_chunks=100),
        ),
    ),
)
ONE = {"num_chunks": 1}
BUCKET = {"store": {"s3": {"region": "eu-1", "anonymous": True}}}
STRANGE = b"""\
# Written by hand.
caching:   {num_chunk_refs: 7}   # a comment
from_the_future: !new_kind {a: [1, null, "no"], b: !deep 0x1F}
manifest:
  preload:
    max_total_refs: 3
    preload_if: !and [!num_refs {from: !Included 1, to: Unbounded}, 'true']
inline_chunk_threshold_bytes: 100
storage_of_tomorrow: 'x'"""


@pytest.fixture(params=[1, 2])
def repository(request, memory_repository):
    memory_repository.chain(2)
    (memory_repository.write_v1 if request.param == 1 else memory_repository.write_v2)({"main": 2})
    return Repository.open(memory_repository.location)


def test_settings_are_changed_one_by_one(repository):
    assert repository.config == RepositoryConfig()
    repository.update_config({"inline_chunk_threshold_bytes": 17})
    repository.update_config({"compression": {"level": 7}, "manifest": {"splitting": RULES}})
    returned = repository.update_config({"virtual_chunk_containers": {"s3://b/x/": BUCKET}})
    assert returned == repository.config
    config = Repository.open(repository.location).config
    assert config.inline_chunk_threshold_bytes == 17
    assert config.compression_level == 7
    assert config.splitting == RULES
    (container,) = config.virtual_chunk_containers
    assert (container.url_prefix, container.store_kind) == ("s3://b/x/", "s3")
    assert container.store_options["region"] == "eu-1"
    assert container.store_options["anonymous"] is True

    repository.update_config(
        {
            "inline_chunk_threshold_bytes": None,
            "virtual_chunk_containers": {"s3://b/x/": None},
            "manifest": {"splitting": None},
            "compression": None,
        }
    )
    assert repository.config == replace(RepositoryConfig(), raw=repository.config.raw)


def test_saving_a_configuration_stores_only_what_was_replaced(repository):
    read = repository.config
    repository.update_config({"compression": {"level": 9}, "caching": {"num_chunk_refs": 5}})
    containers = (
        VirtualChunkContainer(
            name="files",
            url_prefix="file:///data/",
            store_kind="local_file_system",
            store_options={"path": "/data"},
        ),
        VirtualChunkContainer(url_prefix="gs://b/", store_kind="gcs"),
    )
    repository.save_config(
        replace(
            read,
            inline_chunk_threshold_bytes=0,
            splitting=RULES,
            virtual_chunk_containers=containers,
            location_compression=replace(read.location_compression, min_num_chunks=5),
            num_updates_per_repo_info_file=50,
        )
    )
    config = repository.config
    assert config.compression_level == 9
    assert config.raw["caching"] == {"num_chunk_refs": 5}
    assert config.inline_chunk_threshold_bytes == 0
    assert config.splitting == RULES
    assert config.virtual_chunk_containers == containers
    assert config.location_compression.min_num_chunks == 5
    assert config.num_updates_per_repo_info_file == 50
    repository.save_config(replace(config, virtual_chunk_containers=containers[1:]))
    assert repository.config.virtual_chunk_containers == containers[1:]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inline_chunk_treshold_bytes": 1}, "nearest are inline_chunk_threshold_bytes"),
        ({"inline_chunk_threshold_bytes": "1"}, "int is expected, found '1'"),
        ({"inline_chunk_threshold_bytes": True}, "int is expected, found True"),
        ({"inline_chunk_threshold_bytes": 70_000}, "not between 0 and 65535"),
        ({"compression": {"level": 300}}, "compression.level: 300"),
        ({"compression": {"algorithm": "lz4"}}, "'lz4' is not one of zstd"),
        ({"compression": 3}, "compression: a map of settings"),
        (["compression"], "a map of settings"),
        ({"previous_file": "x"}, "previous_file"),
        ({"manifest": {"preload": {"preload_if": "true"}}}, "manifest.preload.preload_if"),
        ({"storage": {"retries": {"max_tries": 0}}}, "storage.retries.max_tries"),
        ({"storage": {"timeouts": {"read_timeout_ms": -1}}}, "storage.timeouts.read_timeout_ms"),
        ({"num_updates_per_repo_info_file": 0}, "not between 1 and"),
        ({"manifest": {"splitting": [["all", []]]}}, "'all' is not a condition"),
        ({"manifest": {"splitting": {"sizes": []}}}, "only split_sizes"),
        ({"manifest": {"splitting": [["any_array", [{"condition": "Any"}]]]}}, "num_chunks"),
        (
            {"manifest": {"splitting": [["any_array", [{**ONE, "condition": {"Axis": -1}}]]]}},
            "integer from 0",
        ),
        (
            {"manifest": {"splitting": [["any_array", [{**ONE, "condition": {"Axis": True}}]]]}},
            "integer from 0",
        ),
        (
            {"manifest": {"splitting": [[{"name_matches": {"regex": "a("}}, []]]}},
            "not a regular expression",
        ),
        (
            {"manifest": {"splitting": [[{"path_matches": {"regex": r"\pL"}}, []]]}},
            "may read differently",
        ),
        (
            {
                "manifest": {
                    "splitting": [["any_array", [{**ONE, "condition": {"DimensionName": r"\Z"}}]]]
                }
            },
            "not a regular expression",
        ),
        ({"manifest": {"virtual_chunk_location_compression": {"min_num_chunks": 2**16}}}, "65535"),
        (
            {
                "virtual_chunk_containers": {
                    "s3://b/": {"store": {"s3": {"checksum_algorithm": "CRC32"}}}
                }
            },
            "not one of crc32",
        ),
        ({"virtual_chunk_containers": {"s3://b": BUCKET}}, "ends with '/'"),
        ({"virtual_chunk_containers": {"s3://b/": {"store": {"s4": {}}}}}, "not a kind of store"),
        ({"virtual_chunk_containers": {"s3://b/": {}}}, "a store must be one kind"),
        ({"virtual_chunk_containers": {"s3://b/": {**BUCKET, "color": 1}}}, "found 'color'"),
        ({"virtual_chunk_containers": {"s3://b/": {"store": {"s3": {"key": "x"}}}}}, "'key' is no"),
        (
            {"virtual_chunk_containers": {"s3://b/": {"store": {"s3": {"region": 1}}}}},
            "region: str is",
        ),
        (
            {"virtual_chunk_containers": {"gs://b/": {"store": {"gcs": {"account_key": "x"}}}}},
            "looks like a credential",
        ),
        (
            {
                "virtual_chunk_containers": {
                    p: {**BUCKET, "name": "n"} for p in ("s3://a/", "s3://b/")
                }
            },
            "names must be unique",
        ),
    ],
)
def test_what_others_could_not_read_is_refused(repository, changes, message):
    before = repository.config
    with pytest.raises(InvalidInputError, match=message):
        repository.update_config(changes)
    assert repository.config == before


def test_a_change_is_logged_once_and_none_is_not(memory_repository):
    memory_repository.chain(1).write_v2({"main": 1}, config=encode_flexbuffer({"future": [1, 2]}))
    opened = Repository.open(memory_repository.location)
    opened.update_config({})
    opened.update_config({"inline_chunk_threshold_bytes": None})
    assert len(list(opened.operations())) == 1
    assert opened._state().info.config == encode_flexbuffer({"future": [1, 2]})
    opened.update_config({"inline_chunk_threshold_bytes": 3})
    newest, oldest = opened.operations()
    assert newest.kind is UpdateKind.CONFIG_CHANGED
    assert oldest.backup_path is not None
    assert opened.config.raw == {"future": [1, 2], "inline_chunk_threshold_bytes": 3}
    opened.set_status(Availability.READ_ONLY)
    with pytest.raises(ReadOnlyError):
        opened.update_config({"inline_chunk_threshold_bytes": 4})


def test_yaml_keeps_the_bytes_of_what_did_not_change(memory_repository):
    memory_repository.chain(1).write_v1({"main": 1})
    storage = memory_repository.storage
    storage.put(CONFIG_YAML, STRANGE)
    opened = Repository.open(memory_repository.location)
    opened.update_config({"inline_chunk_threshold_bytes": 5})
    changed = storage.get(CONFIG_YAML).data
    assert changed == STRANGE.replace(b"bytes: 100", b"bytes: 5") + b"\n"
    opened.update_config({"manifest": {"splitting": RULES}, "compression": {"level": 2}})
    again = storage.get(CONFIG_YAML).data
    assert again.startswith(STRANGE[: STRANGE.index(b"manifest:")])
    assert b"!and" in again
    assert b"!Included 1" in again
    assert b"!Axis 0" in again
    assert opened.config.splitting == RULES
    copies = sorted(found.key for found in storage.list("overwritten/"))
    assert len(copies) == 2
    assert storage.get(copies[1]).data == STRANGE
    assert storage.get(copies[0]).data == changed


words = st.sampled_from(["a", "no", "true", "1", "", "0x1F", "é", "x: y", "- z", "# c", "1:30"])
leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | words
trees = st.dictionaries(
    words,
    st.recursive(leaves, lambda t: st.lists(t, max_size=3) | st.dictionaries(words, t, max_size=3)),
    max_size=5,
)


@RELAXED
@given(old=trees, new=trees)
def test_any_tree_can_be_written_over_any_other(old, new):
    first = encode_yaml_config(b"", old)
    assert decode_yaml_config(first).raw == old
    assert encode_yaml_config(first, old) == first
    assert decode_yaml_config(encode_yaml_config(first, new)).raw == new


@RELAXED
@given(tree=trees)
def test_a_change_touches_nothing_else(tree):
    changed = changed_tree(tree, {"compression": {"level": 5}})
    assert changed == {**tree, "compression": {"level": 5}}


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("number", range(6))
def test_a_lost_answer_neither_loses_nor_doubles_a_change(repository, fault, number, monkeypatch):
    monkeypatch.setattr("icechunk_format.repository.state.publish._FIRST_PAUSE", 0.0)
    repository.update_config({"caching": {"num_chunk_refs": 5}})
    version = repository.spec_version
    changes = {"inline_chunk_threshold_bytes": 3}
    storage = FaultyStorage(repository.storage, fault=fault, at={number})
    try:
        change_config(storage, changes, spec_version=version)
    except CommitOutcomeUnknownError:
        pytest.fail("one lost answer can always be found out")
    except StorageError:
        change_config(repository.storage, changes, spec_version=version)
    config = repository.config
    assert config.raw == {"caching": {"num_chunk_refs": 5}, "inline_chunk_threshold_bytes": 3}
