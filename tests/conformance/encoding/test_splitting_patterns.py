"""Patterns of splitting rules mean what they mean in Rust, or are refused."""

import icechunk
import numpy as np
import pytest
import zarr
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
REFUSED = (
    r"\p{L}", r"\pL", r"\P{Greek}", r"[\p{L}]", "(?x) a b", "(?m)l$", "a*+", "a++", "a{2}+",
    "(?u)a", "[a[bc]]", "[a-z&&[^b]]", "[a-z--b]", r"\<a", r"\b{start}a", "(?U)a+", "(?-u)a",
    "[[:^alpha:]]", "a{,2}", "^*a", r"\b+a", "a(?i)b", "(?i)é", "[a-c-e]", "a{2000}", "a**",
    "a{", "a{x}", "[[:foo:]]", "(?-i)a", "a{1}{2}", "a?*", r"a\z", "(?<n>a)b", "(?s).$", "}", "]",
    "[]]", "[^]]b", "[[:alpha:]]", r"[a-\d]", r"\x41", r"\x{41}", r"\u0041", r"\t", r"\n", r"\ ",
    r"[\b]", r"[\A]", "(?i:k)", "(?is)A", "(?ii)a", "[[:alpha:]", "(|a)+", "(a*)*", "(a){2}",
    "[a||b]", "a*b*c*d*e*", r"\w{99}\W{99}\w{3}|x1", r"\w" * 201,
)  # fmt: skip
BROKEN = (
    "(", ")", "(a", "a)", "(?:a", "*a", "a|*", "(*)", "(?:+a)", "{", "a|{2}", "(?i)*", "(?i)(",
    "[a", "[[:", "[a-", "a[", "[z-a]", "a{3,2}", "(?P<n>a)(?P<n>b)", "\\", "[\\", "[a-\\",
    "a\\", "[]", "[^]", "(?", "(?P", "(?P<", "(?P<>a)", "(?P<1>a)", "(?P'n'a)", "(?)", "(?i",
    "(?<n", "(?P<n>a)(?P=n)", r"(a)\1", r"\0", r"\8", "(?=a)", "(?!a)", "(?<=a)b", "(?<!a)b",
    "(?>a)", "(?#x)a", "(?|a)", r"a\Z", r"\e", r"\h", r"\R", r"\K", r"\Q", r"\é", r"\G|a",
    r"a|b\Xc", "a(", "temp|(",
)  # fmt: skip
UNDERSTOOD = (
    "", "a", "^a$", "a$", "l$", r"\Aa", "(?P<n>a)b", "a|b", "|", "(a|)b", "()", "a.b", ".$",
    "a{2}", "a{2,}", "a{0,1}b", "[a-]", "[-a]b", "[^-a]", "a+?", "a??b", "a*?b", "a{1,2}?", r"\d",
    r"\D", r"^\w+$", r"\W", r"\s", r"^\S+$", r"\bb", r"\Bb", r"[\d_]", r"[\w]", r"[\s]", r"[\S]",
    r"^[^\W\d]+$", r"\-", r"\.", r"\/", r"[\]]", r"[\^a]", r"[a\-z]", "(?i)TEMP", "(?i)[a-z]",
    "(?i)k", "(?i)", "^(?:temp|a)$", "^(?:a)?b", "(a)??b", "^te.p", "é", "[é]", "[à-ü]", ".", "^.$",
    "\\\\", r"\\w", "a#b", "a&b", "a~b", "a b", "$a", "a^", "$", "^", "^^a", "a$$", "x{0}",
    r"\w{99}\W{99}|x1", "a{99}|b", "[a-zA-Z_]{1,64}$",
)  # fmt: skip


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
