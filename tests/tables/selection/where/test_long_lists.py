"""Long lists of IN bypass the parser and keep the same rows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.selection.where import long_lists
from icechunk_format.tables.selection.where.long_lists import as_literals, as_set, cut_lists
from icechunk_format.tables.selection.where.split import plan_where
from icechunk_format.tables.selection.where.types import STRING, column, constant

DAYS = np.datetime64("2024-03-01T00:00:00", "us") + np.arange(400) * np.timedelta64(12, "h")
VALUES = {
    "i": pa.array([*range(-5, 394), None], pa.int16()),
    "b": pa.array([2**53 + 1, *range(398), None], pa.int64()),
    "f": pa.array([*(np.arange(398) / 8), np.nan, None], pa.float32()),
    "d": pa.array([-0.0, 0.1, *(np.arange(396) / 8), np.nan, None]),
    "u": pa.array([Decimal(2**64 - 1), *map(Decimal, range(398)), None], pa.decimal128(20, 0)),
    "s": pa.array([*(f"v{n}" for n in range(396)), "o'neil", "a, 'b'", "IN (", None]),
    "t": pa.array(DAYS),
    "z": pa.array(DAYS, pa.timestamp("us", "UTC")),
}
TYPES = {name: column.type for name, column in VALUES.items()}
WHOLE = [*range(-3, 100), 2**53, *range(200, 400)]
LISTS = {
    "whole": [str(n) for n in WHOLE],
    "large": [str(n + 2**64) for n in WHOLE],
    "broken": [str(n / 8) for n in WHOLE],
    "powers": [f"{n}e-1" for n in range(300)],
    "texts": [f"'v{n}'" for n in range(1, 600, 2)] + ["'o''neil'", "'a, ''b'''", "'IN ('"],
    "dates": [f"'{day}'" for day in DAYS[::4].astype("M8[D]")] * 4,
    "times": [f"'{str(day).replace('T', ' ')}'" for day in DAYS[::2]],
    "short times": [f"'{str(day)[:16]}'" for day in DAYS[::2]],
    "doubles": [f"{n / 8}D" for n in WHOLE] + ["1.0E-3D", "-1.0E10D", "0.0D"],
    "bigints": [f"{n}L" for n in WHOLE],
    "smallints": [f"{n}S" for n in range(300)],
    "cast floats": [f"CAST('{n / 8}' AS FLOAT)" for n in WHOLE[:-5]] + ["CAST('NaN' AS FLOAT)"],
    "cast doubles": [f"CAST('{n / 8}' AS DOUBLE)" for n in WHOLE] + ["CAST('-Infinity' AS DOUBLE)"],
    "typed dates": [f"DATE '{day}'" for day in DAYS[::4].astype("M8[D]")] * 4,
    "typed times": [f"TIMESTAMP_NTZ '{str(day).replace('T', ' ')}'" for day in DAYS[::2]],
    "instants": [f"CAST('{day}Z' AS TIMESTAMP)" for day in DAYS[::2]],
    "mixed": ["1", "2L", "3.5D"] * 100,
    "zoned times": [f"'{day}+02:00'" for day in DAYS[::2]],
}
NUMBERS = (
    *("whole", "large", "broken", "powers", "doubles", "bigints", "smallints", "mixed"),
    *("cast floats", "cast doubles"),
)
PAIRS = [
    *((column, kind) for column in "ibfdu" for kind in NUMBERS),
    *(("s", kind) for kind in LISTS if "t" in kind and kind not in NUMBERS),
    *(
        (column, kind)
        for column in ("t", "z", "date(z)")
        for kind in LISTS
        if "es" in kind and kind not in NUMBERS
    ),
]


def kept(where: str) -> list[bool] | str:
    try:
        residual = plan_where(where, TYPES, (), "America/New_York").residual
    except InvalidInputError as error:
        return type(error).__name__
    assert residual is not None
    return residual.evaluate(VALUES, 400).to_pylist()


@pytest.mark.parametrize(("column", "kind"), PAIRS)
@pytest.mark.parametrize("operator", ["IN", "NOT IN"])
def test_a_long_list_keeps_what_the_parser_would_keep(
    column: str, kind: str, operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = f"{column} {operator} ({' ,'.join(LISTS[kind])})"
    found = kept(where)
    assert len(cut_lists(where)[0]) < 50
    monkeypatch.setattr(long_lists, "cut_lists", lambda sql: (sql, {}))
    assert found == kept(where)


def test_lists_within_quotes_are_texts() -> None:
    numbers = ", ".join(map(str, range(300)))
    for sql in (
        f"s = 'i IN ({numbers})'",
        f's = "i IN ({numbers})"',
        f"`i IN ({numbers})` = 1",
        f"s = 'it''s i IN ({numbers})'",
        f"s = 'it\\'s i IN ({numbers})'",
        f"s = r'\\' OR s = 'i IN ({numbers})'",
        f"s = 1 /* i IN ({numbers}) */",
        f"s = :icechunk_list_0 OR i IN ({numbers})",
    ):
        assert cut_lists(sql) == (sql, {})


def test_two_hundred_thousand_values_never_reach_the_parser() -> None:
    where = f"i IN ({', '.join(map(str, range(200_000)))}) AND s IN ('x')"
    shorter, lists = cut_lists(where)
    assert shorter == "i IN (:icechunk_list_0) AND s IN ('x')"
    assert [len(items) for items in lists.values()] == [200_000]


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        plan_where("s = '\ud800'", TYPES, ())


NTZ, UTC, DATE = pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32()


@pytest.mark.parametrize(
    ("kind", "items", "values"),
    [
        (pa.string(), ["'a'", "'o''neil'", "''"], ["a", "o'neil", ""]),
        (pa.int64(), ["1L", "-2L"], [1, -2]),
        (pa.int16(), ["1S", "-2S"], [1, -2]),
        (pa.int8(), ["1Y", "-2Y"], [1, -2]),
        (pa.float64(), ["1.5D", "1.0E-3D"], [1.5, 0.001]),
        (pa.float64(), ["CAST('1.5' AS DOUBLE)", "CAST('-Infinity' AS DOUBLE)"], [1.5, -np.inf]),
        (pa.float32(), ["CAST('0.5' AS FLOAT)"], [0.5]),
        (DATE, ["DATE '2024-03-01'"], [dt.date(2024, 3, 1)]),
        (DATE, ["'2024-03-01'", "'2024-03-02'"], [dt.date(2024, 3, 1), dt.date(2024, 3, 2)]),
        (
            NTZ,
            ["TIMESTAMP_NTZ '2024-03-01 12:00:00.5'"],
            [dt.datetime(2024, 3, 1, 12, 0, 0, 500_000)],
        ),
        (
            NTZ,
            ["'2024-03-01T12:00:00'", "'2024-03-01'"],
            [dt.datetime(2024, 3, 1, 12), dt.datetime(2024, 3, 1)],
        ),
        (
            UTC,
            ["CAST('2024-03-01T12:00:00Z' AS TIMESTAMP)"],
            [dt.datetime(2024, 3, 1, 12, tzinfo=dt.UTC)],
        ),
    ],
)
def test_lists_of_the_type_of_a_column_become_one_column(
    kind: pa.DataType, items: list[str], values: list[object]
) -> None:
    found = as_set(column("c", kind), items)
    assert found is not None
    assert found[0] == column("c", kind)
    assert found[1].type == kind
    assert found[1].expression.value.equals(pa.array(values, kind))


def test_plain_numbers_become_the_widest_type_of_their_kind() -> None:
    for kind, items, wide, values in (
        (pa.int16(), ["1", "70000"], pa.int64(), [1, 70_000]),
        (pa.float32(), ["1", "0.1"], pa.float64(), [1.0, 0.1]),
    ):
        found = as_set(column("c", kind), items)
        assert found is not None
        assert found[0].type == wide
        assert found[1].expression.value.equals(pa.array(values, wide))


def test_times_become_a_column_that_waits_for_the_zone() -> None:
    found = as_set(column("c", UTC), ["'2024-03-01 12:00:00'"])
    assert found is not None
    assert found[1].type == UTC
    assert found[1].expression.operation == "to_timestamp"
    (times,) = found[1].expression.arguments
    assert times.value.equals(pa.array([dt.datetime(2024, 3, 1, 12)], NTZ))


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        (pa.int64(), ["1L", "2"]),
        (pa.int64(), ["1S"]),
        (pa.int64(), ["1.5"]),
        (pa.int8(), ["1000Y"]),
        (pa.float64(), ["CAST('x' AS DOUBLE)"]),
        (pa.string(), ["1"]),
        (pa.string(), ["1L"]),
        (pa.int64(), ["'1'"]),
        (DATE, ["'2024-03-01'", "'2024-3-1'"]),
        (DATE, ["DATE '2024-3-1'"]),
        (NTZ, ["'2024-03-01 12'"]),
        (NTZ, ["TIMESTAMP_NTZ '2024-03-01 12'"]),
        (UTC, ["'2024-03-01 12:00:00+02:00'"]),
    ],
)
def test_other_lists_are_not_columns(kind: pa.DataType, items: list[str]) -> None:
    assert as_set(column("c", kind), items) is None


def test_strings_and_numbers_become_literals_without_the_parser() -> None:
    assert as_literals(["'a'", "'o''neil'"]) == [constant("a", STRING), constant("o'neil", STRING)]
    assert as_literals(["1", "2"]) == [constant(1, pa.int32()), constant(2, pa.int32())]
    assert as_literals(["1", "2L"]) is None


def test_lists_of_200_items_are_long() -> None:
    for count, is_long in ((199, False), (200, True)):
        assert bool(cut_lists(f"i IN ({', '.join(map(str, range(count)))})")[1]) == is_long
