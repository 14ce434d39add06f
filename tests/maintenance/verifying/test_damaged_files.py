"""Verification reports files with flipped bits and changed words; none makes it raise."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from helpers.damage.files import damaged_files
from helpers.damage.repository import build_sound

from icechunk_format.maintenance import verify
from icechunk_format.maintenance.verifying.checks.logs import check_log
from icechunk_format.maintenance.verifying.checks.state import Version
from icechunk_format.maintenance.verifying.findings import Report
from icechunk_format.repository.repository import Repository
from icechunk_format.spec.envelope import FileType, unwrap, wrap
from icechunk_format.spec.object_keys import transaction_log_key

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
        version = Version(snapshot_id=info.id, flushed_at=info.flushed_at, rank=0, has_log=True)
        for data in (
            *with_flipped_bits(stored),
            *damaged_files(stored, FileType.TRANSACTION_LOG, count=200, seed=3),
        ):
            report = Report()
            check_log(version, info.id, data, snapshot, report)
            kinds.update(finding.kind for finding in report.findings())
    assert {"log-damaged", "log-id-mismatch", "log-unsorted", "log-unknown-node"} <= kinds


@pytest.mark.parametrize("name", ["transactions", "snapshots", "manifests", "repo"])
def test_damaged_files_are_reported(sound, tmp_path, name):
    folder = sound / name
    paths = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    file_type = {
        "transactions": FileType.TRANSACTION_LOG,
        "snapshots": FileType.SNAPSHOT,
        "manifests": FileType.MANIFEST,
        "repo": FileType.REPO_INFO,
    }[name]
    path = max(paths, key=lambda one: one.stat().st_size)
    stored = path.read_bytes()
    try:
        for data in damaged_files(stored, file_type, count=25, seed=5):
            path.write_bytes(data)
            assert verify(str(sound)).num_rows
    finally:
        path.write_bytes(stored)
