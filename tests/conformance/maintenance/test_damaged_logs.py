"""`verify` reports damaged transaction logs that the reference wrote; no damage makes it fail."""

from __future__ import annotations

import random

import zarr
from helpers.builder import reference_repository

from icechunk_format.encoding.envelope import FileType, unwrap, wrap
from icechunk_format.maintenance import verify


def history(path):
    """Write arrays, then change, delete, resize and move some of them with the reference."""
    repository = reference_repository(path)
    session = repository.writable_session("main")
    group = zarr.group(session.store)
    for number in range(4):
        group.create_array(f"a{number}", shape=(20, 20), chunks=(5, 5), dtype="f4")[:] = number + 1
    session.commit("create")
    session = repository.writable_session("main")
    group = zarr.open_group(session.store)
    group["a0"][:5] = 9
    group["a1"].attrs["x"] = 1
    del group["a2"]
    group.create_group("below")
    session.commit("change")
    session = repository.writable_session("main")
    zarr.open_group(session.store)["a0"].resize((25, 20))
    session.commit("resize")
    session = repository.rearrange_session("main")
    session.move("/a3", "/below/a3")
    session.commit("move")


def test_every_damaged_log_is_reported(tmp_path):
    history(tmp_path)
    logs = sorted((tmp_path / "transactions").iterdir())
    draw = random.Random(5)
    reported = 0
    for number in range(30):
        log = draw.choice(logs)
        stored = log.read_bytes()
        if number % 2:
            payload = unwrap(stored, file_type=FileType.TRANSACTION_LOG, object_key="t").payload
            raw = bytearray(payload)
            raw[draw.randrange(len(raw))] = draw.choice([0, 1, 127, 255])
            damaged = wrap(bytes(raw), file_type=FileType.TRANSACTION_LOG, spec_version=2)
        else:
            damaged = stored[: draw.randrange(len(stored))]
        log.write_bytes(damaged)
        findings = [row for row in verify(str(tmp_path)).to_pylist() if row["severity"] != "info"]
        assert all(log.name in (row["object_key"] or log.name) for row in findings)
        assert number % 2 or findings, "a log that was cut off is always damaged"
        reported += bool(findings)
        log.write_bytes(stored)
    assert reported > 20
    assert [row["severity"] for row in verify(str(tmp_path)).to_pylist()] == ["info"]
