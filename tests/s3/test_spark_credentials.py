"""Named credentials: used by every way to read and write, and shown by none.

A program of its own runs all of them, with event log and UI. Its log and the event log, what it
printed and raised, plans, the REST API of the UI, checkpoints, warehouse, scratch folders while it
still runs, and stored objects are searched for the credentials.
"""

from __future__ import annotations

import obstore
from helpers.servers.s3 import SECRET_KEY
from helpers.spark.credential_programs import CLASSIC, WRONG_SECRET, running, search

CANARIES = (SECRET_KEY, WRONG_SECRET)


def test_named_credentials_are_used_everywhere_and_shown_nowhere(s3_server, tmp_path):
    bucket = s3_server.new_bucket()
    path = f"s3://{bucket}/named"
    with running(CLASSIC, tmp_path, path, s3_server.storage_options):
        search([tmp_path], CANARIES)
    assert "configured.access.key" in (tmp_path / "pages" / "environment").read_text()
    events = b"".join(f.read_bytes() for f in (tmp_path / "events").rglob("*") if f.is_file())
    assert b"SparkListenerSQLExecutionStart" in events
    assert path.encode() in events
    assert any((tmp_path / "checkpoints").rglob("*"))
    search([tmp_path], CANARIES)
    store = s3_server.raw_store(bucket)
    found = [item for page in obstore.list(store) for item in page]
    assert len(found) > 10
    for item in found:
        data = bytes(obstore.get(store, item["path"]).bytes())
        assert not any(canary.encode() in data for canary in CANARIES), item
