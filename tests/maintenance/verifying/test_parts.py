"""Verification in parts finds what verification in one task does, for every planted damage.

The parts are run here one after the other, with the shuffles and the join of a cluster done by
Arrow, so that all that the Spark job does beside them is moving rows.
"""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from helpers.damage.planted import DAMAGES
from helpers.damage.repository import Damaged, build_sound

from icechunk_format.maintenance import verify
from icechunk_format.maintenance.verifying.parts import (
    LISTING_SCHEMA,
    WORK_SCHEMA,
    check_joined_rows,
    check_manifest_rows,
    id_prefixes,
    list_chunk_objects,
    merge_reports,
    run_verify,
    verify_tasks,
)
from icechunk_format.maintenance.verifying.verify import finish_verify, plan_verify
from icechunk_format.storage.location import Location


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "repository"
    build_sound(path)
    return path


def verify_in_parts(path, *, deep=False, authorized=()):
    plan = plan_verify(Location(str(path)), deep=deep, authorized=authorized)
    context = pickle.loads(pickle.dumps(plan.context))
    tasks = pickle.loads(pickle.dumps(verify_tasks(plan.state, 3)))
    work = pa.Table.from_batches([batch for task in tasks for batch in run_verify(context, task)])
    work = work.sort_by([("id", "ascending")])
    references = pa.Table.from_batches(check_manifest_rows(context, work.to_batches()))
    listing = pa.Table.from_batches(
        [batch for part in id_prefixes() for batch in list_chunk_objects(context, part)],
        schema=LISTING_SCHEMA,
    )
    batches = outer_join(references, listing).to_batches(max_chunksize=7)
    for batch in merge_reports(context, check_joined_rows(context, batches)):
        plan.report.absorb(batch.to_pylist())
    return finish_verify(plan)


def outer_join(left, right):
    """Join work with a listing; by row numbers, since Arrow joins no columns of lists."""
    numbers = (
        left.select(["id"])
        .append_column("left", pa.array(range(len(left))))
        .join(
            right.append_column("right", pa.array(range(len(right)))),
            keys="id",
            right_keys="listed_id",
            join_type="full outer",
        )
    )
    found = [*left.take(numbers["left"]).columns, *right.take(numbers["right"]).columns]
    names = [*WORK_SCHEMA.names, *LISTING_SCHEMA.names]
    return pa.Table.from_arrays(found, names=names).combine_chunks()


def test_a_sound_repository(sound):
    assert verify_in_parts(sound).equals(verify(str(sound)))


# Each of these takes both ways through a different stage.
@pytest.mark.parametrize("planted", DAMAGES[::3], ids=lambda d: d.name)
def test_planted_damage(planted, sound, tmp_path):
    copy = Damaged(sound, tmp_path / "repository")
    containers = copy.repository.config.virtual_chunk_containers
    authorized = [c.url_prefix for c in containers] if planted.authorized else []
    planted.apply(copy)
    whole = verify(str(copy.path), deep=planted.deep, authorized=authorized)
    parts = verify_in_parts(copy.path, deep=planted.deep, authorized=authorized)
    assert parts.to_pylist() == whole.to_pylist()
