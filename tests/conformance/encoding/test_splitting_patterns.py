"""Patterns of splitting rules mean what they mean in Rust, or are refused."""

import icechunk
import numpy as np
import pytest
import zarr
from helpers.files.splitting_patterns import BROKEN, REFUSED, UNDERSTOOD
from helpers.raised import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icechunk_format.encoding.splitting_patterns import check_pattern, contains
from icechunk_format.errors import UnsupportedError
from icechunk_format.repository import Repository

NAMES = (
    "temp",
    "a",
    "a-b",
    "aab",
    "x1",
    "A_Z",
    "tail\n",
    "é",
    "a b",
    "a]b{2}",
    "٣",
    "\x1cq",
    "k.K",
)


@pytest.fixture(scope="module")
def found_by_reference(tmp_path_factory):
    """Return a function: the names of arrays in which the reference finds a pattern."""
    folder = tmp_path_factory.mktemp("patterns")
    numbers = iter(range(10**6))

    def found(pattern, names=NAMES):
        conditions = icechunk.ManifestSplitCondition, icechunk.ManifestSplitDimCondition
        rules = {conditions[0].name_matches(pattern): {conditions[1].Any(): 1}}
        splitting = icechunk.ManifestSplittingConfig.from_dict(rules)
        place = str(folder / str(next(numbers)))
        theirs = icechunk.Repository.create(
            icechunk.local_filesystem_storage(place),
            config=icechunk.RepositoryConfig(manifest=icechunk.ManifestConfig(splitting=splitting)),
        )
        session = theirs.writable_session("main")
        for name in names:
            array = zarr.create_array(session.store, name=name, shape=(2,), chunks=(1,), dtype="i1")
            array[:] = np.ones(2, "i1")
        session.commit("arrays")
        ours = Repository.open(place)
        nodes = ours.snapshot(ours.resolve()).nodes
        return {n.path[1:] for n in nodes if n.array is not None and len(n.array.manifests) == 2}

    return found


def found_by_us(pattern, names=NAMES):
    """Return the names in which we find the pattern, and those for which we refuse."""
    found, refused = set(), set()
    for name in names:
        try:
            if contains(pattern, name):
                found.add(name)
        except UnsupportedError:
            refused.add(name)
    return found, refused


@pytest.mark.parametrize("pattern", UNDERSTOOD)
def test_a_pattern_finds_the_same_names(found_by_reference, pattern):
    found, refused = found_by_us(pattern)
    assert found_by_reference(pattern) - refused == found
    assert all(not (name.isascii() and name.isprintable()) for name in refused)


@pytest.mark.parametrize("pattern", REFUSED)
def test_a_pattern_that_is_not_understood_is_refused(pattern):
    with raises(UnsupportedError, found=pattern):
        contains(pattern, "a")


@pytest.mark.parametrize("pattern", BROKEN)
def test_a_broken_pattern_matches_nothing_but_is_not_configured(found_by_reference, pattern):
    assert found_by_us(pattern) == (set(), set())
    assert found_by_reference(pattern) == set()
    with raises(UnsupportedError, found=pattern):
        check_pattern(pattern)


@given(st.text(r"ab|*+?()[]{},2^$\.-:<>=!&~zZwdsipPxu41 ", max_size=9))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_pattern_means_the_same_or_is_refused(found_by_reference, pattern):
    # Refusing is always right; where anything is understood, all of it must be right.
    names = ("a", "ab", "b2", "aa-z", "x]^")
    found, refused = found_by_us(pattern, names)
    if len(refused) < len(names):
        assert found_by_reference(pattern, names) - refused == found
