"""Ways to damage ``repo`` and the copies of it."""

from __future__ import annotations

import shutil
from dataclasses import replace

from helpers.damage.planting import Damage, planting
from helpers.damage.repository import Damaged, swap_in

from icechunk_format.encoding.envelope import FileType
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.values.flexbuffers import encode_flexbuffer
from icechunk_format.encoding.values.metadata_items import MetadataItems

DAMAGES: list[Damage] = []
damage = planting(DAMAGES)


@damage("repo-damaged")
def repo_cut_short(d: Damaged) -> None:
    d.truncate("repo", 300)


@damage("repo-damaged")
def repo_of_another_type(d: Damaged) -> None:
    shutil.copy(d.file(f"snapshots/{d.tip}"), d.file("repo"))


@damage("repo-unsorted")
def repo_snapshots_out_of_order(d: Damaged) -> None:
    # Parents and refs are indices, so that two snapshots in exchanged places are two mixed up;
    # branches stand for themselves.
    d.edit_payload("repo", FileType.REPO_INFO, swap_in(repo_info.REPO, "branches"))


@damage("main-missing")
def no_main(d: Damaged) -> None:
    d.edit_repo(lambda i: replace(i, branches={"trunk": d.tip, "side": d.first}))


@damage("history-cycle", "snapshot-time-reversed")
def history_in_a_circle(d: Damaged) -> None:
    d.edit_info(d.first, parent_id=d.tip)


@damage("tag-deleted-but-present")
def deleted_tag_that_is_there(d: Damaged) -> None:
    d.edit_repo(lambda i: replace(i, deleted_tags=(*i.deleted_tags, "v1")))


@damage("operations-log-invalid")
def newest_operation_with_a_backup(d: Damaged) -> None:
    name = next(u.backup_path for u in d.repository.operations() if u.backup_path)

    def change(info):
        newest, *older = info.latest_updates
        return replace(info, latest_updates=(replace(newest, backup_path=name), *older))

    d.edit_repo(change)


@damage("config-damaged")
def config_of_noise(d: Damaged) -> None:
    d.edit_repo(lambda i: replace(i, config=b"\xff\xff\xff"))


@damage("container-ignored", "virtual-container-unknown", "virtual-location-bad")
def container_without_slash(d: Damaged) -> None:
    container = {"url_prefix": "s3://bucket/x", "name": "x", "store": {"s3": {}}}
    config = encode_flexbuffer({"virtual_chunk_containers": {"s3://bucket/x": container}})
    d.edit_repo(lambda i: replace(i, config=config))


@damage("metadata-damaged")
def metadata_of_noise(d: Damaged) -> None:
    broken = MetadataItems.of({"a": "text"})
    items = replace(broken, items=tuple((name, b"\xff\xff\xff") for name, _ in broken.items))
    d.edit_repo(lambda i: replace(i, metadata_items=items))


@damage("backup-missing")
def backup_deleted(d: Damaged) -> None:
    next(d.file("overwritten").iterdir()).unlink()


@damage("backup-damaged")
def backup_cut_short(d: Damaged) -> None:
    name = sorted(p.name for p in d.file("overwritten").iterdir())[0]
    d.truncate(f"overwritten/{name}", 120)
