"""Verification reports files with flipped bits and changed words; none makes it raise."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from helpers.damage.files import damaged_files
from helpers.damage.repository import build_sound

from icechunk_format.encoding import transaction_log
from icechunk_format.encoding.envelope import FileType, unwrap, wrap
from icechunk_format.encoding.manifest import decode as manifest
from icechunk_format.encoding.object_keys import transaction_log_key
from icechunk_format.encoding.repo_info import file as repo_info
from icechunk_format.encoding.snapshot import file as snapshot_file
from icechunk_format.errors import FormatError, UnsupportedError
from icechunk_format.maintenance import verify
from icechunk_format.maintenance.verifying.checks.snapshots import check_log
from icechunk_format.maintenance.verifying.checks.state import RankedSnapshot
from icechunk_format.maintenance.verifying.findings import Report
from icechunk_format.repository import Repository

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "repository"
    build_sound(path)
    return path


def with_flipped_bits(data: bytes) -> Iterator[bytes]:
    """Yield copies of a log with one bit of its tables flipped."""
    envelope = unwrap(data, file_type=FileType.TRANSACTION_LOG, object_key="original")
    bits = range(8 * len(envelope.payload))
    for bit in bits if len(bits) < 800 else random.Random(1).sample(bits, 800):
        changed = bytearray(envelope.payload)
        changed[bit // 8] ^= 1 << bit % 8
        yield wrap(
            bytes(changed),
            file_type=FileType.TRANSACTION_LOG,
            spec_version=envelope.spec_version,
            level=1,
        )


def test_flipped_bits_of_logs_are_reported(sound):
    repository = Repository.open(str(sound))
    kinds = set()
    for info in repository.snapshots():
        key = transaction_log_key(info.id)
        if repository.storage.head(key) is None:
            continue
        stored = repository.storage.get(key).data
        snapshot = repository.snapshot(info.id)
        ranked = RankedSnapshot(
            snapshot_id=info.id, flushed_at=info.flushed_at, rank=0, has_log=True
        )
        for data in (
            *with_flipped_bits(stored),
            *damaged_files(stored, FileType.TRANSACTION_LOG, count=200, seed=3),
        ):
            report = Report()
            check_log(ranked, info.id, data, snapshot, report)
            kinds.update(finding.kind for finding in report.findings())
    assert {"log-damaged", "log-id-mismatch", "log-unsorted", "log-unknown-node"} <= kinds


def decode_whole_snapshot(data, object_key):
    """Decode a snapshot, whose nodes are decoded one by one."""
    for _ in snapshot_file.decode(data, object_key=object_key).nodes:
        pass


FILES = {
    "transactions": (FileType.TRANSACTION_LOG, transaction_log.decode, "log"),
    "snapshots": (FileType.SNAPSHOT, decode_whole_snapshot, "snapshot"),
    "manifests": (FileType.MANIFEST, manifest.decode, "manifest"),
    "repo": (FileType.REPO_INFO, repo_info.decode, "repo"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_are_reported_as_damaged_exactly_if_they_cannot_be_decoded(sound, name):
    """Unless a field that is not decoded is damaged: then order or times differ."""
    file_type, decode, kind = FILES[name]
    folder = sound / name
    paths = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    path = max(paths, key=lambda one: one.stat().st_size)
    object_key = path.relative_to(sound).as_posix()
    stored = path.read_bytes()
    found = Counter()
    try:
        for data in damaged_files(stored, file_type, count=25, seed=5):
            path.write_bytes(data)
            rows = verify(str(sound)).select(["kind", "object_key"]).to_pylist()
            is_reported = {"kind": f"{kind}-damaged", "object_key": object_key} in rows
            try:
                decode(data, object_key=object_key)
            except (FormatError, UnsupportedError):
                assert is_reported
            else:
                assert not is_reported
            found[is_reported] += 1
    finally:
        path.write_bytes(stored)
    assert min(found[True], found[False]) > 0
