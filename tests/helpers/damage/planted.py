"""Every way in which tests damage a copy of the small sound repository."""

from __future__ import annotations

from helpers.damage import chunks as damage_of_chunks
from helpers.damage import manifests as damage_of_manifests
from helpers.damage import repo as damage_of_repo
from helpers.damage import snapshots as damage_of_snapshots

# Their order counts: some tests take every third one.
DAMAGES = [
    *damage_of_repo.DAMAGES,
    *damage_of_snapshots.DAMAGES,
    *damage_of_manifests.DAMAGES,
    *damage_of_chunks.DAMAGES,
]
