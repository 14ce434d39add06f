"""A small repository with every kind of garbage, in memory, and what must stay of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
from helpers.builder import new_place
from helpers.sessions.model import array_document, group_document, stored_contents

from icechunk_format.maintenance.garbage import parts as collect_parts
from icechunk_format.maintenance.garbage.collect import collect_from
from icechunk_format.maintenance.garbage.marks import OneProcessCollector
from icechunk_format.maintenance.garbage.parts import SweepTask
from icechunk_format.maintenance.garbage.result import DeleteReport, Phase
from icechunk_format.repository import Repository
from icechunk_format.repository.files import metadata_cache

FOREIGN = (
    "chunks/readme.txt",
    "chunks/1cechnkrep0f1rstcmt0",
    "manifests/below/1CECHNKREP0F1RSTCMT0",
    "transactions/ZZZZZZZZZZZZZZZZZZZZ",
)


@dataclass
class Built:
    """A repository, the instants between its changes, and ids by label."""

    repository: Repository
    ids: dict[str, str] = field(default_factory=dict)
    instants: dict[str, datetime] = field(default_factory=dict)

    @property
    def storage(self):
        return self.repository.storage

    def note(self, label, snapshot_id=None):
        if snapshot_id is not None:
            self.ids[label] = str(snapshot_id)
        time.sleep(0.002)
        self.instants[label] = datetime.now(UTC)
        time.sleep(0.002)

    def clone(self):
        """Return a copy in memory, ages of objects included."""
        source, target = (str(url)[9:] for url in (self.repository.location, new_place()))
        space = self.storage._space
        space.objects[target] = {
            target + key.removeprefix(source): found for key, found in space.below(source).items()
        }
        repository = Repository.open(f"memory://{target}")
        return Built(repository, dict(self.ids), dict(self.instants))

    def contents(self):
        """Return what every ref shows, bytes included; no cache helps."""
        metadata_cache().clear()
        fresh = Repository.open(self.repository.location)
        refs = {f"branch {n}": s for n, s in fresh.branches().items()}
        refs |= {f"tag {n}": s for n, s in fresh.tags().items()}
        return {ref: stored_contents(fresh, tip) for ref, tip in refs.items()}


def keys_of(storage, *, without=()):
    """Return all keys but those below some prefixes."""
    return {found.key for found in storage.list() if not found.key.startswith(tuple(without))}


def commit(repository, number, branch="main", *, amend=False, flush=False):
    """Write a chunk of its own, an inline one and a rewritten one, and return the snapshot."""
    session = repository.writable_session(branch)
    if number == 0:
        session.create_group("/", group_document())
        session.create_array(
            "/values", array_document((40, 4), (1, 4)), shape=(40, 4), num_chunks=(40, 1)
        )
    payload = bytes([number % 251]) * 700
    session.set_chunks("/values", np.array([[number % 30, 0], [35, 0]]), [payload, payload])
    session.set_chunks("/values", np.array([[36, 0]]), [bytes([number]) * 9])
    if amend:
        return session.amend(f"amended {number}").snapshot_id
    if flush:
        return session.flush(f"flushed {number}")
    return session.commit(f"commit {number}").snapshot_id


def build_untidy(spec_version=2, location=None):
    """Make commits, a reset, a deleted branch, and in version 2 an amendment and a flush."""
    metadata_cache().clear()
    repository = Repository.create(location or new_place(), spec_version=spec_version)
    built = Built(repository)
    built.note("root", repository.resolve(branch="main"))
    for step in range(3):
        built.note(f"main {step}", commit(repository, step))
    repository.create_branch("side", built.ids["main 1"])
    repository.create_tag("kept", built.ids["main 1"])
    for step in range(3, 6):
        built.note(f"side {step}", commit(repository, step, "side"))
    repository.create_branch("gone", built.ids["main 2"])
    built.note("gone", commit(repository, 6, "gone"))
    repository.delete_branch("gone")
    repository.reset_branch("side", built.ids["side 3"])
    if spec_version == 2:
        built.note("amended", commit(repository, 7, amend=True))
        built.note("flushed", commit(repository, 8, flush=True))
    # What a crashed writer leaves: objects that nothing refers to.
    for kind in ("snapshots", "transactions", "manifests", "chunks"):
        repository.storage.put(f"{kind}/ZZZZZZZZZZZZZZZZZZZG", b"litter")
    # Whose names are no ids: not ours to delete.
    for name in FOREIGN:
        repository.storage.put(name, b"foreign")
    built.note("end")
    return built


class PartCollector:
    """Collects as Spark's tasks do, part by part, with dictionaries for its shuffles."""

    def __init__(self, location, older_than, *, depth=1, dry_run=False):
        self.location, self.older_than = location, older_than
        self.depth, self.dry_run = depth, dry_run

    def old_snapshots(self, candidates):
        raw = collect_parts.snapshot_rows(candidates, 1)[0]
        parts = range(collect_parts.part_count(1))
        found = collect_parts.old_snapshots(self.location, self.older_than, raw, parts)
        old = collect_parts.ids_in(b"".join(found))
        return frozenset(one for one in candidates if one.raw in {row.tobytes() for row in old})

    def mark(self, kept):
        self.marks = {Phase.MANIFESTS: (1, {}), Phase.CHUNKS: (self.depth, {})}
        self.mark_also(kept)

    def mark_also(self, added):
        listed = {}
        for row in collect_parts.snapshot_rows(added, 3):
            for part, ids in collect_parts.manifests_of_snapshots(self.location, [row]):
                listed.setdefault(part, []).append(ids)
        rows = [
            row
            for part, some in listed.items()
            for row in collect_parts.distinct_manifest_rows(part, some)
        ]
        manifests, chunks = (self.marks[phase][1] for phase in (Phase.MANIFESTS, Phase.CHUNKS))
        for row in rows:
            manifests.setdefault(row.part, []).append(row.ids)
            found = collect_parts.chunks_of_manifests(self.location, [row.listed], self.depth)
            for part, ids in found:
                chunks.setdefault(part, []).append(ids)

    def sweep(self, phase, kept):
        if kept is None:
            depth, marks = self.marks[phase]
        else:
            raw = collect_parts.ids_in(collect_parts.snapshot_rows(kept, 1)[0])
            depth, marks = 1, {part: [ids] for part, ids in collect_parts.ids_by_part(raw, 1)}
        task = SweepTask(
            location=self.location,
            phase=phase,
            older_than=self.older_than,
            depth=depth,
            dry_run=self.dry_run,
        )
        total = DeleteReport()
        for part in range(collect_parts.part_count(depth)):
            rows = marks.get(part, [])
            expected = sum(len(ids) // 12 for ids in rows)
            total += collect_parts.sweep_part(task, part, rows, expected)
        return total


def soon():
    """Return a cutoff that protects nothing."""
    return datetime.now(UTC) + timedelta(seconds=5)


def collect(built, older_than, storage=None, **options):
    """Collect the garbage in one process, at another storage than the repository's if need be."""
    storage = built.storage if storage is None else storage
    dry_run = options.get("dry_run", False)
    return collect_from(
        storage,
        OneProcessCollector(storage, older_than, dry_run=dry_run),
        spec_version=built.repository.spec_version,
        older_than=older_than,
        **options,
    )
