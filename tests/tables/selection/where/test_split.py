"""``where`` is split into parts that together keep the same rows, or refused."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers.raised import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.selection.select import select
from icechunk_format.tables.selection.where.split import plan_where

DIMS = {"x": 4, "y": 3}
COORDINATES = {"x": pa.array([10, 20, 30, 40]), "y": pa.array([1.5, None, -2.0])}
CELLS = list(itertools.product(range(4), range(3)))
ROWS = {
    "x": COORDINATES["x"].take(pa.array([x for x, _ in CELLS])),
    "y": COORDINATES["y"].take(pa.array([y for _, y in CELLS])),
    "v": pa.array([None if n % 5 == 4 else n / 2 for n in range(12)], pa.float32()),
    "w": pa.array([n % 3 for n in range(12)], pa.int16()),
}
COLUMNS = {name: values.type for name, values in ROWS.items()}

comparisons = st.sampled_from(
    [
        "x > 15", "x IN (10, 40)", "x % 20 = 0", "y > 0", "y IS NULL", "y <> 1.5", "v > 2",
        "w = 1", "x / 10 = w + 1", "x < 25 OR x = 40", "y = -2.0 AND v < 5", "NULL", "TRUE",
        "1 = 2", "v IS NULL",
    ]
)  # fmt: skip
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        inner.map(lambda a: f"NOT ({a})"),
        st.tuples(inner, inner).map(lambda p: f"({p[0]}) AND ({p[1]})"),
        st.tuples(inner, inner).map(lambda p: f"({p[0]}) OR ({p[1]})"),
    ),
    max_leaves=6,
)


def rows_of(where: str, **options: str) -> list[int]:
    """Return the cells that a selection and its residual keep together."""
    chosen = select(
        dims=DIMS, columns=COLUMNS, coordinate=COORDINATES.__getitem__, where=where, **options
    )
    chosen = pickle.loads(pickle.dumps(chosen))
    sets = [
        set(chosen.dims[name].positions().tolist()) if name in chosen.dims else set(range(size))
        for name, size in DIMS.items()
    ]
    kept = [True] * len(CELLS)
    if chosen.residual is not None:
        batch = pa.RecordBatch.from_pydict(ROWS)
        columns = {name: batch.column(name) for name in chosen.residual.columns}
        kept = chosen.residual.evaluate(columns, batch.num_rows).to_pylist()
    return [row for row, (x, y) in enumerate(CELLS) if kept[row] and x in sets[0] and y in sets[1]]


@settings(max_examples=200, deadline=None)
@given(conditions)
def test_selections_and_residual_keep_what_the_whole_condition_keeps(where: str) -> None:
    # Without dimensions nothing is taken apart, so this is the condition itself.
    planned = plan_where(where, COLUMNS, [])
    if planned.never:
        expected = [False] * len(CELLS)
    elif planned.residual is None:
        expected = [True] * len(CELLS)
    else:
        expected = planned.residual.evaluate(ROWS, len(CELLS)).to_pylist()
    assert rows_of(where) == [row for row, keep in enumerate(expected) if keep]


def test_conditions_on_one_dimension_leave_no_residual() -> None:
    planned = plan_where("x > 15 AND (y < 0 OR y IS NULL) AND NOT (x = 20 OR v > 1)", COLUMNS, DIMS)
    assert set(planned.dimension_conditions) == {"x", "y"}
    assert planned.residual is not None
    assert planned.residual.columns == ("v",)


def test_an_or_over_several_columns_still_restricts_what_it_can() -> None:
    planned = plan_where("(x = 10 AND v > 1) OR (x = 40 AND v < 1)", COLUMNS, DIMS)
    assert planned.dimension_conditions["x"].columns == ("x",)
    chosen = select(
        dims=DIMS,
        columns=COLUMNS,
        coordinate=COORDINATES.__getitem__,
        where="(x = 10 AND v > 1) OR (x = 40 AND v < 1)",
    )
    assert chosen.dims["x"].positions().tolist() == [0, 3]
    assert chosen.residual is not None


def test_all_three_options_are_intersected() -> None:
    assert rows_of("y IS NOT NULL", sel="x=20:40", isel="x=0:3") == [3, 5, 6, 8]


@pytest.mark.parametrize("where", ["FALSE", "1 = 2 AND v > 1", "NULL"])
def test_what_is_never_true_selects_nothing(where: str) -> None:
    chosen = select(dims=DIMS, columns=COLUMNS, coordinate=COORDINATES.__getitem__, where=where)
    assert all(selection.count == 0 for selection in chosen.dims.values())
    assert chosen.dims
    scalar = select(
        dims={}, columns={"v": pa.float32()}, coordinate=COORDINATES.__getitem__, where=where
    )
    assert scalar.residual is not None
    assert scalar.residual.evaluate({"v": pa.array([1.0])}, 1).to_pylist() == [False]


def test_a_coordinate_is_read_once_and_only_if_named() -> None:
    asked: list[str] = []

    def coordinate(name: str) -> pa.Array:
        asked.append(name)
        return COORDINATES[name]

    select(
        dims=DIMS, columns=COLUMNS, coordinate=coordinate, where="x > 1 AND v > 1", sel="x=10:30"
    )
    assert asked == ["x"]


@pytest.mark.parametrize("where", ["X > 15 and V > 1", "`x` > 15 AND `v` > 1"])
def test_names_ignore_case(where: str) -> None:
    assert rows_of(where) == rows_of("x > 15 AND v > 1")


def test_names_that_differ_in_case_only_have_to_be_exact() -> None:
    columns = {"a": pa.int32(), "A": pa.int32(), "b c": pa.int32()}
    planned = plan_where("A > 1 AND `b c` > 1", columns, [])
    assert planned.residual is not None
    assert planned.residual.columns == ("A", "b c")
    columns = {"ab": pa.int32(), "AB": pa.int32()}
    with raises(InvalidInputError, column="aB", existing=("ab", "AB")):
        plan_where("aB > 1", columns, [])


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("vv > 1", "no column 'vv'; did you mean 'v'"),
        ("v >", "not an SQL expression near character"),
        ("v > 1; DROP TABLE t", "not supported"),
        ("v", "not a condition"),
        ("v AND x > 1", "FLOAT, not a condition"),
        ("v > DATE '2024-01-01'", "FLOAT and DATE have no common type"),
        ("last_day(v) > 1", r"'LAST_DAY\(v\)' is not supported; use df.where"),
        ("date_format(DATE '2024-01-01', 'MMM') = 'Jan'", "yyyy, MM, dd, HH, mm and signs"),
        ("round(v, 1) = 0.5", "not supported"),
        ("v IN (SELECT 1)", "not supported"),
        ("rand() > 0.5", r"'RAND\(\)' is not supported"),
        ("try_cast(v AS INT) = 1", "not supported"),
        ("CAST(w AS STRING COLLATE UTF8_LCASE) = 'A'", "not supported"),
        ("t.v > 1", "'t.v' is not supported"),
        ("count(v) > 1", "not supported"),
        ("row_number() OVER (ORDER BY v) > 1", "not supported"),
        ("round(v, 2) > 1", "not supported"),
        ("x / 3.0 > 1", "write the number as a double, such as 2.5D"),
        ("x > 1 GROUP BY x", "not an SQL expression|not supported"),
        ("", "not an SQL expression|not one SQL expression"),
        ("x = 10 AND 1 / 0 > 1", "division by zero"),
        ("(" * 3000 + "x > 1" + ")" * 3000, "nested too deeply|not an SQL expression"),
    ],
)
def test_what_is_refused(where: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        plan_where(where, COLUMNS, DIMS)
    assert caught.value.facts["option"] == "where"
    assert pickle.loads(pickle.dumps(caught.value)).message == caught.value.message
    assert caught.value.message.splitlines()[-1].startswith("where")


def test_many_terms_need_no_deep_recursion() -> None:
    where = " OR ".join(f"x = {n}" for n in range(3000))
    assert rows_of(where) == list(range(12))


def test_what_fails_on_the_data_shows_the_condition() -> None:
    residual = plan_where("v > 0 AND x / w > 1", COLUMNS, []).residual
    assert residual is not None
    with raises(
        InvalidInputError,
        match=r"where v > 0 AND x / w > 1: division by zero",
        sql="v > 0 AND x / w > 1",
    ):
        residual.evaluate(ROWS, len(CELLS))


def test_a_scalar_stands_for_all_rows() -> None:
    residual = plan_where("x > 15 AND v > 1", COLUMNS, []).residual
    assert residual is not None
    columns: dict[str, Any] = {"x": pa.scalar(20), "v": pa.array([0.5, 2, None], pa.float32())}
    assert residual.evaluate(columns, 3).to_pylist() == [False, True, False]
    columns = {"x": pa.scalar(20), "v": pa.scalar(2.0, pa.float32())}
    assert residual.evaluate(columns, 3).to_pylist() == [True] * 3


@pytest.mark.parametrize(
    "where",
    [
        "f % 2 = 0", "floor(f) > 1", "i IN (1, 2)", "s LIKE 'a%'", "hour(t) = 1", "power(f, i) > 1",
        "l > INTERVAL 1 HOUR", "sqrt(f) > 1", "i / 2 > 1", "i % i = 0", "f = 0.1", "ln(f) > 1",
        "left(s, 1) = 'a'", "date(t) = '2024-07-01'", "i * 0.5 > 1", "round(f) = 1", "f <= i",
    ],
)  # fmt: skip
def test_no_rows_null_rows_and_null_scalars(where: str) -> None:
    types = {
        "f": pa.float32(),
        "i": pa.int64(),
        "s": pa.string(),
        "t": pa.timestamp("us"),
        "l": pa.duration("us"),
    }
    residual = plan_where(where, types, []).residual
    assert residual is not None
    nothing = {name: pa.array([], kind) for name, kind in types.items()}
    assert residual.evaluate(nothing, 0).to_pylist() == []
    nulls = {name: pa.array([None, None], kind) for name, kind in types.items()}
    assert residual.evaluate(nulls, 2).to_pylist() == [False, False]
    scalars = {name: pa.scalar(None, kind) for name, kind in types.items()}
    assert residual.evaluate(scalars, 2).to_pylist() == [False, False]


def test_nan_is_greater_than_every_number_and_equal_to_itself() -> None:
    values = {"d": pa.array([1.0, np.nan, None])}
    types = {"d": pa.float64()}

    def kept(where: str) -> list[bool]:
        residual = plan_where(where, types, []).residual
        assert residual is not None
        return residual.evaluate(values, 3).to_pylist()

    assert kept("d > 1e308") == [False, True, False]
    assert kept("d = d") == [True, True, False]
    assert kept("d < double('NaN')") == [True, False, False]
    assert kept("d <= d") == [True, True, False]


@settings(max_examples=300, deadline=None)
@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["<", "<=", ">", ">=", "=", "<>"]),
    st.booleans(),
)
def test_floats_meet_literals_as_doubles(number: float, operator: str, literal_first: bool) -> None:
    with np.errstate(over="ignore"):
        near = np.float32(number)
        around = [np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    values = np.array([near, *around, -np.inf, np.inf, 0], np.float32)
    literal = f"double('{number!r}')"
    where = f"{literal} {operator} f" if literal_first else f"f {operator} {literal}"
    residual = plan_where(where, {"f": pa.float32()}, []).residual
    assert residual is not None
    compare = {
        "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
        "=": np.equal, "<>": np.not_equal,
    }[operator]  # fmt: skip
    doubles = values.astype(np.float64)
    expected = compare(number, doubles) if literal_first else compare(doubles, number)
    assert residual.evaluate({"f": pa.array(values)}, len(values)).to_pylist() == expected.tolist()


def test_timestamps_are_compared_in_utc() -> None:
    types = {"t": pa.timestamp("us", "UTC"), "clock": pa.timestamp("us")}
    values = {"t": pa.array([0, 7_200_000_000], types["t"])}
    for where in ("t >= '1970-01-01T02:00:00+01:00'", "t >= TIMESTAMP '1970-01-01 02:00:00+01:00'"):
        residual = plan_where(where, types, []).residual
        assert residual is not None
        assert residual.evaluate(values, 2).to_pylist() == [False, True]
    with pytest.raises(InvalidInputError, match="as the column shows it"):
        plan_where("clock > '2024-01-01T00:00+01:00'", types, [])


NEW_YORK = "America/New_York"
INSTANTS = {"t": pa.array(np.arange(48) * 3_600_000_000, pa.timestamp("us", "UTC"))}


@pytest.mark.parametrize(
    "where",
    [
        "t >= '1970-01-01 05:00:00'",
        "timestamp '1970-01-01 05:00:00' > t",
        "t BETWEEN '1970-01-01' AND date '1970-01-02'",
        "date(t) = '1969-12-31'",
        "t = '1970-01-01 12:00:00 Asia/Tokyo'",
        "hour(t) = 23",
        "NOT date_trunc('day', t) <= '1970-01-01'",
    ],
)
def test_a_zone_that_is_set_later_keeps_the_same_rows(where: str) -> None:
    types = {"t": INSTANTS["t"].type}
    condition = plan_where(where, types, types, NEW_YORK).dimension_conditions["t"]
    expected = condition.evaluate(INSTANTS, 48).to_pylist()
    assert 0 < sum(expected) < 48
    later = plan_where(where, types, types, None)
    kept = [True] * 48
    if later.residual is not None:
        assert later.residual.needs_zone
        kept = later.residual.in_zone(NEW_YORK).evaluate(INSTANTS, 48).to_pylist()
    if later.dimension_conditions:
        held = later.dimension_conditions["t"].evaluate(INSTANTS, 48).to_pylist()
        kept = [a and b for a, b in zip(kept, held, strict=True)]
    assert kept == expected


def test_a_zone_that_is_set_later_still_bounds_a_dimension() -> None:
    types = {"t": INSTANTS["t"].type}
    for where, kept in (
        ("t >= '1970-01-05'", 24),
        ("t = '1970-02-01'", 0),
        ("'1960-01-01' > t", 0),
        ("CAST(date '1960-01-01' AS timestamp) > t", 0),
        ("CAST(date '1970-01-05' AS timestamp) <= t", 24),
        ("date(t) BETWEEN '1970-03-01' AND '1970-04-01'", 0),
        ("t < '1970-01-05' AND hour(t) = 2", 48),
    ):
        bound = plan_where(where, types, types, None).dimension_conditions["t"]
        assert sum(bound.evaluate(INSTANTS, 48).to_pylist()) == kept, where


@pytest.mark.parametrize("unit", ["hour", "minute", "second"])
def test_times_of_a_repeated_hour_are_truncated_within_their_own(unit: str) -> None:
    # In New York, 01:00 to 01:59 of this day come twice.
    hours = np.datetime64("2024-11-03T04:00", "us") + np.arange(4) * np.timedelta64(1, "h")
    times = pa.array(hours, pa.timestamp("us", "UTC"))
    where = f"date_trunc('{unit}', t) = t"
    condition = plan_where(where, {"t": times.type}, [], NEW_YORK).residual
    assert condition is not None
    assert condition.evaluate({"t": times}, 4).to_pylist() == [True] * 4


@pytest.mark.parametrize(
    ("where", "hours"),
    [
        ("unix_timestamp(n) = 7200", {2}),
        ("unix_timestamp(t) = unix_timestamp(n)", set(range(48))),
        # Midnight of a day is an instant of the session time zone.
        ("unix_timestamp(date(n)) = 18000", set(range(24))),
    ],
)
def test_seconds_of_local_times_have_no_zone(where: str, hours: set[int]) -> None:
    columns = {"n": INSTANTS["t"].cast(pa.timestamp("us")), "t": INSTANTS["t"]}
    types = {name: values.type for name, values in columns.items()}
    condition = plan_where(where, types, [], NEW_YORK).residual
    assert condition is not None
    kept = condition.evaluate(columns, 48).to_pylist()
    assert {hour for hour, keep in enumerate(kept) if keep} == hours


def test_a_day_begins_with_its_first_instant() -> None:
    # In Sao Paulo this day began at 01:00, when clocks were set forward.
    columns = {"n": pa.array([np.datetime64("2018-11-04T12:00", "us")])}
    types = {"n": columns["n"].type}
    for hour, keeps in ((1, True), (0, True), (2, False)):
        where = f"date(n) = timestamp '2018-11-04 0{hour}:00:00'"
        condition = plan_where(where, types, [], "America/Sao_Paulo").residual
        assert condition is not None
        assert condition.evaluate(columns, 1).to_pylist() == [keeps]


def test_zones_that_do_not_exist_are_refused_by_name() -> None:
    for zone in ("Europe/Atlantis", "../etc/passwd", "+25:00", ""):
        with raises(InvalidInputError, found=zone):
            plan_where("hour(t) = 1", {"t": INSTANTS["t"].type}, [], zone)


def test_executors_do_not_import_the_parser() -> None:
    code = (
        "import sys, icechunk_format.tables.cf.decode;"
        "import icechunk_format.tables.selection.where.condition;"
        "sys.exit('sqlglot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("s = 'o''neil'", "o'neil"),
        ('s = "o""neil"', 'o"neil'),
        ("s = 'o\\'neil'", "o'neil"),
        ("s = 'o' 'neil'", "oneil"),
        ("s = ''''", "'"),
        ("s = 'a\"b'", 'a"b'),
        ("s = 'a\"\"b'", 'a""b'),
        ("s LIKE 'o''%'", "o'neil"),
        ("s IN ('o''neil', '')", "o'neil"),
        ("s IN ('o''neil', '')", ""),
    ],
)
def test_quotes_in_texts(where: str, value: str) -> None:
    """What Spark since 4.0 takes them for."""
    planned = plan_where(where, {"s": pa.string()}, ())
    assert planned.residual is not None
    mask = planned.residual.evaluate({"s": pa.array([value, "zz"])}, 2)
    assert mask.to_pylist() == [True, False]


def test_only_ilike_ignores_case_and_patterns_cross_lines():
    values = pa.array(["Oslo", "oslo", "OS\nLO", "los", None])
    for where, expected in [
        ("s LIKE 'O%o'", [True, False, False, False, False]),
        ("s ILIKE 'O%o'", [True, True, True, False, False]),
        ("s LIKE 'O%O'", [False, False, True, False, False]),
        ("s ILIKE '_s%'", [True, True, True, False, False]),
    ]:
        planned = plan_where(where, {"s": pa.string()}, ())
        assert planned.residual is not None
        assert planned.residual.evaluate({"s": values}, 5).to_pylist() == expected


def test_a_long_text_is_refused_before_it_is_parsed():
    """The parser takes a hundred times the size of the text; IN lists are read without it."""
    columns = {"v": pa.int64()}
    with raises(InvalidInputError, option="where", allowed=1_000_000):
        plan_where(" OR ".join(["v = 123456789"] * 100_000), columns, [], "UTC")
    numbers = ", ".join(map(str, range(200_000)))
    assert len(numbers) > 1_000_000
    assert plan_where(f"v IN ({numbers})", columns, [], "UTC").residual is not None
