"""Every way in which tests damage a copy of the small sound repository."""

from __future__ import annotations

import damage_of_chunks
import damage_of_manifests
import damage_of_repo
import damage_of_snapshots

# Their order counts: some tests take every third one.
DAMAGES = [
    *damage_of_repo.DAMAGES,
    *damage_of_snapshots.DAMAGES,
    *damage_of_manifests.DAMAGES,
    *damage_of_chunks.DAMAGES,
]
