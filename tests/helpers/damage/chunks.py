"""Ways to damage chunks, ours and virtual ones."""

from __future__ import annotations

import json
import shutil

from helpers.damage.planting import Damage, changed, planting, with_columns
from helpers.damage.repository import LINES, REMOTE, SHARDS, SMALL, Damaged

from icechunk_format.encoding.manifest.chunk_refs import inline_refs, virtual_refs

DAMAGES: list[Damage] = []
damage = planting(DAMAGES)


# -- chunks ------------------------------------------------------------------------------------


@damage("chunk-missing")
def chunk_deleted(d: Damaged) -> None:
    d.file(d.chunk_key(LINES, 0)).unlink()


@damage("chunk-missing")
def chunk_renamed(d: Damaged) -> None:
    file = d.file(d.chunk_key(LINES, 7))
    file.rename(file.with_name(file.name.lower()))


@damage("chunk-too-short")
def chunk_cut_short(d: Damaged) -> None:
    d.truncate(d.chunk_key(LINES, 0), 1000)


@damage("chunk-too-short")
def reference_beyond_its_chunk(d: Damaged) -> None:
    with_columns(d, LINES, offset=changed(d.refs(LINES).offset, 2, 1))


@damage("chunk-undecodable", deep=True)
def chunk_flipped(d: Damaged) -> None:
    d.flip(d.chunk_key(LINES, 0), 500)


@damage("chunk-undecodable", deep=True)
def chunk_swapped_with_a_shard(d: Damaged) -> None:
    shutil.copy(d.file(d.chunk_key(SHARDS, 0)), d.file(d.chunk_key(LINES, 1)))


@damage("chunk-undecodable", deep=True)
def shard_index_flipped(d: Damaged) -> None:
    d.flip(d.chunk_key(SHARDS, 0), 1030)


@damage("chunk-undecodable", deep=True)
def inline_chunk_of_another_size(d: Damaged) -> None:
    d.set_refs(SMALL, inline_refs([[0], [1], [2]], [b"ab", b"cde", b"ef"]))


@damage("chunk-undecodable", deep=True)
def chunks_exchanged_with_another_codec(d: Damaged) -> None:
    document = json.loads(d.node(LINES).user_data)
    document["codecs"] = [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 0}}]
    d.edit_node(LINES, user_data=json.dumps(document).encode())


# -- virtual chunks ----------------------------------------------------------------------------


def _set_locations(d: Damaged, locations) -> None:
    d.set_refs(
        REMOTE,
        virtual_refs([[0, 0], [1, 0], [2, 0]], locations, [0, 1024, 2048], [1024] * 3),
    )


def _one(d: Damaged) -> str:
    return d.repository.config.virtual_chunk_containers[0].url_prefix + "one.bin"


@damage("virtual-location-bad")
def location_that_leaves_its_folder(d: Damaged) -> None:
    _set_locations(d, [_one(d), _one(d).replace("one.bin", "../secret"), _one(d)])


@damage("virtual-location-bad")
def location_in_an_unknown_container(d: Damaged) -> None:
    _set_locations(d, [_one(d), "vcc://nowhere/one.bin", _one(d)])


@damage("virtual-container-unknown")
def location_outside_of_containers(d: Damaged) -> None:
    _set_locations(d, [_one(d), "s3://elsewhere/one.bin", "s3://elsewhere/two.bin"])


@damage("virtual-missing", authorized=True)
def virtual_file_missing(d: Damaged) -> None:
    _set_locations(d, [_one(d), _one(d).replace("one", "none"), _one(d)])


@damage("virtual-too-short", authorized=True)
def virtual_file_too_short(d: Damaged) -> None:
    d.set_refs(
        REMOTE, virtual_refs([[0, 0], [1, 0], [2, 0]], [_one(d)] * 3, [0, 1, 4000], [97] * 3)
    )


@damage("virtual-modified", authorized=True)
def virtual_file_changed(d: Damaged) -> None:
    d.set_refs(
        REMOTE,
        virtual_refs(
            [[0, 0], [1, 0], [2, 0]], [_one(d)] * 3, [0, 1, 2], [97] * 3, last_modified=[0, 9, 0]
        ),
    )


@damage("virtual-modified", authorized=True)
def virtual_file_of_another_etag(d: Damaged) -> None:
    d.set_refs(
        REMOTE,
        virtual_refs(
            [[0, 0], [1, 0], [2, 0]],
            [_one(d)] * 3,
            [0, 1, 2],
            [97] * 3,
            etags=[None, '"no-such-etag"', None],
        ),
    )
