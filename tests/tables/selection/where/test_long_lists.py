"""Long lists of IN bypass the parser and keep the same rows."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.selection.where import long_lists
from icechunk_format.tables.selection.where.long_lists import cut_lists
from icechunk_format.tables.selection.where.split import plan_where

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
