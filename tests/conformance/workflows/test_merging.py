"""Random histories of two branches of real tables, merged in both directions.

A plain model holds the cells of each branch by variable and label. Each change and each merge is
read by the reference and xarray. The law: a merge leaves each cell at its label, with the value
that a three-way merge of both models gives, or raises ConflictError and changes nothing; if both
sides changed the same thing, or one the meaning of cells that the other wrote, it raises.

``make nightly`` runs 1,000 histories from a random seed on. More of them (10,000 take three hours
of one core), or one of them::

    cd tests/conformance/workflows
    HISTORIES=10000 HISTORY_SEED=1 python -m pytest test_merging.py -s -k night
    HISTORIES=1 HISTORY_SEED=123 python -m pytest test_merging.py -s -k keep
"""

import copy
import random
import shutil

import pytest
from helpers.grids.table_histories import (
    Array,
    History,
    Refused,
    State,
    run_seeds,
    three_way,
)

BY_DAY, BY_NIGHT = 16, 1_000
pytestmark = pytest.mark.needs_reference


def run_histories(folder, number, first_seed):
    """Run histories; return their number, and the outcomes of their merges."""

    def run(seed, outcomes):
        history = History(folder, seed)
        try:
            history.run()
            shutil.rmtree(history.place)
        except Exception as error:
            error.add_note(f"v{history.spec_version}")
            raise
        finally:
            outcomes.update(history.outcomes)

    return run_seeds(run, number, first_seed, variables=("HISTORIES", "HISTORY_SEED"))


def test_random_histories_of_tables_keep_each_cell_at_its_label(tmp_path):
    number, outcomes = run_histories(tmp_path, BY_DAY, 1)
    if number >= BY_DAY:
        assert outcomes["merged"] >= number // 2
        assert outcomes["refused"] > 0


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_a_night_of_random_histories(tmp_path):
    run_histories(tmp_path, BY_NIGHT, random.randrange(10**6))


def test_the_model_refuses_changes_of_the_same_thing():
    base = State({1, 2}, {"v": Array("v", {1: 1.0, 2: 2.0})})
    ours, theirs = copy.deepcopy(base), copy.deepcopy(base)
    ours.arrays["v"].cells[1] = 5.0
    theirs.labels.add(3)
    theirs.arrays["v"].cells[3] = 3.0
    merged = three_way(base, ours, theirs)
    assert (merged.labels, merged.arrays["v"].cells) == ({1, 2, 3}, {1: 5.0, 2: 2.0, 3: 3.0})
    theirs.labels.discard(1)
    del theirs.arrays["v"].cells[1]
    with pytest.raises(Refused):
        three_way(base, ours, theirs)
