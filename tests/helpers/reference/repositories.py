"""Repositories built with the reference library, one function for each state worth reading.

Conformance suites call these to get bytes that we did not write. A function takes an empty target
directory and answers with a ``ReferenceRepository``. ``STATES`` lists every function with the spec
versions it can be built for, so that a suite can run over all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from helpers.reference.arrays import (
    inline_and_native_chunks,
    nested_groups,
    resized_arrays,
    sharded_arrays,
    shifted_array,
    split_manifests,
)
from helpers.reference.building import ReferenceRepository
from helpers.reference.histories import (
    amended_commit,
    branches_and_tags,
    detached_snapshot,
    empty_repository,
    expired_and_collected,
    expired_history,
    linear_history,
    long_operations_log,
    migrated_from_v1,
    moved_nodes,
)
from helpers.reference.virtual import compressed_locations, named_container, virtual_chunks

State = Callable[[Path, int], ReferenceRepository]

STATES: dict[str, tuple[State, tuple[int, ...]]] = {
    state.__name__: (state, versions)
    for state, versions in (
        (empty_repository, (1, 2)),
        (linear_history, (1, 2)),
        (branches_and_tags, (1, 2)),
        (nested_groups, (1, 2)),
        (inline_and_native_chunks, (1, 2)),
        (resized_arrays, (1, 2)),
        (shifted_array, (1, 2)),
        (split_manifests, (1, 2)),
        (sharded_arrays, (1, 2)),
        (virtual_chunks, (1, 2)),
        (named_container, (2,)),
        (compressed_locations, (1, 2)),
        (moved_nodes, (2,)),
        (amended_commit, (2,)),
        (detached_snapshot, (1, 2)),
        (expired_history, (1, 2)),
        (expired_and_collected, (1, 2)),
        (long_operations_log, (2,)),
        (migrated_from_v1, (2,)),
    )
}

CASES: list[tuple[str, int]] = [
    (name, version) for name, (_, versions) in STATES.items() for version in versions
]


def build(name: str, spec_version: int, directory: Path) -> ReferenceRepository:
    """Build the state called ``name`` below ``directory``, which must not hold one yet."""
    state, versions = STATES[name]
    if spec_version not in versions:
        raise ValueError(f"{name} exists for spec versions {versions}, not {spec_version}")
    return state(directory / f"{name}-v{spec_version}", spec_version)
