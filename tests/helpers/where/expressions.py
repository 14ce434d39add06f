"""Expressions for ``where``, rows to evaluate them on, and the rows that Spark keeps.

The rows hold NULL, NaN, both zeros, limits of types, and times around the edges of periods.
``answers.json`` has what Spark answered: `tests/spark/reading/test_reading_where.py` compares it
with Spark, and writes it with ``WHERE_UPDATE=1``.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from icechunk_format.tables.selection.where.split import plan_where

_ANSWERS = Path(__file__).parent / "answers.json"

NAN, INF = math.nan, math.inf

COLUMNS = {
    "f": pa.array([0.1, NAN, None, 5.0, -0.0, 0.5, -INF, 16777216.0, 2.5, -2.5], pa.float32()),
    "d": pa.array([0.1, NAN, None, -5.5, 0.0, 0.5, INF, 1e300, 2.5, -2.5], pa.float64()),
    "g": pa.array([NAN, NAN, 1.0, None, -0.0, 0.25, INF, 3.0, 2.5, 0.1], pa.float64()),
    "h": pa.array([1.5, -1.5, None, -5.5, 0.0, 1e15, 2.0, 2.1, -0.0, 0.5], pa.float64()),
    "i": pa.array([1, 2, None, -7, 0, 2147483647, 3, -2147483648, 10, 5], pa.int32()),
    "b": pa.array([1, 2, None, 2**62, 0, -(2**63), 2**53 + 1, 7, -1, 5], pa.int64()),
    "t": pa.array([1, -128, None, 127, 0, 5, 6, 7, -8, 9], pa.int8()),
    "u": pa.array(
        [None if n is None else Decimal(n) for n in (1, 2, None, 2**64 - 1, 0, 5, 6, 7, 8, 9)],
        pa.decimal128(20, 0),
    ),
    "s": pa.array(["abc", "a%c", None, "X", "", "ab", "Äpfel", "A_c", " x ", "a\nc"], pa.string()),
    "flag": pa.array([True, False, None, True, False, True, None, False, True, False]),
    "time": pa.array(
        [
            dt.datetime(2024, 7, 1, 6),
            dt.datetime(2024, 8, 1),
            None,
            dt.datetime(2023, 12, 31, 23, 59, 59, 999999),
            dt.datetime(1969, 12, 31, 23, 30),
            dt.datetime(1900, 2, 28),
            dt.datetime(2024, 2, 29, 12, 30, 15),
            dt.datetime(2021, 1, 3),
            dt.datetime(2024, 7, 1),
            dt.datetime(1582, 10, 10),
        ],
        pa.timestamp("us"),
    ),
    "lead": pa.array(
        [
            dt.timedelta(hours=h) if h is not None else None
            for h in (0, 1, None, 6, 24, 25, -1, 48, 2, 3)
        ],
        pa.duration("us"),
    ),
}
ROWS = len(COLUMNS["f"])

EXPRESSIONS = r"""
-- Numbers: widths, NaN, zeros
f > 0.1
f = 0.1
f = 0.1F
f = 0.1D
d = 0.1
f = 5
f >= 5
f < 5
f <= 5
f > d
f = d
d > g
d >= g
d < g
d <= g
d = g
d <> g
d <=> g
g < d
d > 100
d = double('NaN')
d < double('NaN')
double('NaN') <= d
5 < d
5 >= d
NOT (f > 1)
d = -0.0D
f = 16777217
f < 16777217
i = 2.0
i > 1.5
i <> 2.5
b = 9007199254740993
b = 9007199254740993.0
b > 9007199254740992D
b < 99999999999999999999 AND b IS NOT NULL
t = 127
t < 200
t > -128.5
u = 18446744073709551615
u > 1.5
u = b
u < f
i = b
i < d
t = i
1e3 > d
i > -2147483649
b >= -9223372036854775808
-- Arithmetic
i / 2 > 0.4
i % 3 = -1
b % 2 = 1
d % 2 > 0.4
i * 0.1 = 0.1
i * 1.5 = 15
d + 1 > 1
f * f > 24
f + 1 > 5
f - 0.1 = 0
d / 2 = 0.25
-f < -1
-(t + 0) = 8
t + 1 > 100
f * 2 = 5
i / nullif(t, 0) > 0
abs(t + 0) > 5
t - 1 = 4
t * 2 = 10 OR d > 1
f + 0.1 > 0.2
-- Logic with NULL
i IN (1, 2, NULL)
i NOT IN (1)
i NOT IN (1, NULL)
d IN (0.1, double('NaN'))
f IN (0.5, 5)
flag
NOT flag
flag IS NOT TRUE
flag IS FALSE
flag = true
flag OR i > 1
flag AND i > 1
NOT (flag AND i > 1)
NOT (flag OR d > 0)
i IS NULL
i IS NOT NULL AND d IS NOT NULL
i <=> NULL
NOT i <=> 1
i IS DISTINCT FROM 1
i IS NOT DISTINCT FROM 1
NULL
NULL OR flag
i = NULL
1 = 1
1 = 2 OR flag
i BETWEEN 1 AND 5
i NOT BETWEEN 1 AND 5
d BETWEEN 0.1 AND g
coalesce(i, 0) = 0
isnan(d)
isnan(d) OR d IS NULL
isnull(i)
isnotnull(i) AND flag
nullif(i, 1) IS NULL
nvl(f, 1) = 1
ifnull(i, t) = 5
coalesce(NULL, i) = 3
NOT i = 1
!flag
i = 1 OR i = 2 AND flag
flag = false AND NOT i > 1
-- Functions of numbers
floor(h) = -6
floor(nullif(g, double('Infinity'))) = 0
ceil(h) = -5
floor(h) > 100
round(d) = 3
round(f) = -3
round(d) > 1e200
sqrt(d) > 0
power(i, 2) = 49
pow(d, 0.5) = 0.5
exp(d) > 1
ln(d) < 0
sin(radians(d)) < 0
cos(d) > 0.5
degrees(g) > 100
abs(d) = 5.5
abs(t - 1) = 8
floor(i) = 3
ceil(h) = 3
CAST(i AS DOUBLE) / 2 = 0.5
CAST(t AS STRING) = '127'
CAST(i AS BOOLEAN)
CAST(flag AS INT) = 1
CAST(f AS DOUBLE) > 0.1
CAST('2' AS INT) = i
i = '1'
d > '0.1'
f = '0.5'
CAST(b AS DOUBLE) = 9007199254740992
b::double > 5
i > double('1.5')
CAST(nullif(t, 0) AS SMALLINT) = 9
round(d, 0) = 3
i DIV 3 = 1
-7 DIV nullif(t, 0) = -7
b DIV 2 = 1
pmod(i, 5) = 3
pmod(i, -5) = -2
pmod(d, 3) > 2
pmod(d, -3) < -0.5
greatest(d, g) > 5
greatest(i, NULL, t) = 127
greatest(f, d) = double('NaN')
least(d, g, 1) < 0
least(g, NULL) = double('NaN')
sign(d) = -1
signum(i) = 1
i & 1 = 1
i | t = 7
b ^ 1 = 3
CAST(i AS DECIMAL(12, 2)) > 2.5
CAST(t AS DECIMAL(5, 0)) + 1.5 > 3
-- Cases
CASE WHEN d > 1 THEN 'high' WHEN d < -1 THEN 'low' ELSE 'mid' END = 'mid'
CASE WHEN i > 2 THEN 1 ELSE 0 END = 1
CASE i WHEN 1 THEN 'one' WHEN 2 THEN 'two' END = 'two'
CASE WHEN i <> 0 AND i > 2 THEN 6 / i > 0 ELSE flag END
CASE WHEN i <> 0 THEN 1 / i ELSE NULL END > 0.4
CASE WHEN i > NULL THEN TRUE WHEN flag THEN i > 0 END
CASE WHEN flag THEN NULL ELSE i END IS NULL
IF(i > 2, d, f) > 1
IF(flag, t, b) = 1
CASE WHEN 1 = 2 THEN flag ELSE NOT flag END
-- Text
concat(s, 'x') = 'abcx'
s || s = 'XX'
concat(s, NULL) IS NULL
concat('a', s, 'b') = 'aXb'
s = 'abc'
s = 'a' 'bc'
s <> 'o''neil'
s > 'a''b'
length('o''neil' 's') = 7 AND s = 'X'
s > 'Y'
s < 'a'
s LIKE 'a%'
s LIKE 'a\\%c'
s LIKE '_b'
s LIKE 'a_c'
s NOT LIKE 'a%'
s NOT LIKE 'A!_c' ESCAPE '!'
s ILIKE 'A%'
s RLIKE '^[aX]'
s NOT RLIKE 'b'
upper(s) = 'ABC'
lower(s) = 'äpfel'
length(s) = 5
length(s) = 0
substring(s, 2, 1) = 'b'
substr(s, 2) = 'bc'
substring(s, 0, 2) = 'ab'
left(s, 1) = 'a'
right(s, 1) = 'c'
right(s, 2) = 'bc'
trim(s) = 'x'
startswith(s, 'a')
endswith(s, 'c')
contains(s, 'b')
s IN ('abc', 'X')
s NOT IN ('abc', NULL)
s = ''
-- Times
time >= '2024-07-01'
time = '2024-07-01 06:00:00'
time < '1970'
time BETWEEN '2024-07-01' AND '2024-07-31'
time > '2023-12-31 23:59:59.5'
'2024-7-1' <= time
time = date '2024-08-01'
time >= timestamp_ntz '2024-07-01T06:00:00'
time > timestamp '2024-01-01 00:00:00'
month(time) = 7
year(time) < 2024 OR flag
day(time) = 1
dayofmonth(time) = 31
hour(time) + minute(time) > 80
second(time) = 59
dayofweek(time) = 1
weekday(time) = 6
dayofyear(time) = 60
weekofyear(time) = 53
quarter(time) = 3
extract(year FROM time) = 2024
extract(DOW FROM time) = 1
extract(WEEK FROM time) = 27
year(time) = '2024'
date(time) = '2024-07-01'
to_date(time) = date '1969-12-31'
CAST(time AS DATE) < '1900-03-01'
date_trunc('month', time) = '2024-07-01'
date_trunc('WEEK', time) = '2024-07-01'
date_trunc('hour', time) = time
date_trunc('quarter', time) >= '2024-07-01'
time > timestamp_ntz '2024-07-01' + INTERVAL 1 DAY
time + INTERVAL 2 HOURS > '2024-07-01 07:00:00'
time - timestamp_ntz '2024-07-01' < INTERVAL '1' DAY
time - INTERVAL '30' MINUTE < '1969-12-31 23:00:01'
time IN ('2024-07-01', '2024-08-01')
time <> '2024-07-01'
time IS NULL
date_format(time, 'yyyy-MM') = '2024-07'
date_format(date(time), 'yyyy/MM/dd') = '1900/02/28'
date_format(time, 'HH:mm') >= '12:30'
trunc(time, 'MONTH') = date '2024-07-01'
trunc(time, 'year') < '2021-02-01'
trunc(time, 'week') = '2024-07-01'
date_add(date(time), 3) = '2024-07-04'
date_sub(date(time), t) > '2024-01-01'
datediff(time, '2024-07-01') = 31
datediff('2024-07-01', time) > 100
unix_timestamp(time) = 1719813600
CASE WHEN month(time) IN (12, 1, 2) THEN 'winter' ELSE 'other' END = 'winter'
hour(date '2024-01-01') = 0
year(date(time)) = 2021
lead <= INTERVAL 6 HOURS
lead = INTERVAL '1' DAY
lead > INTERVAL '0 02:00:00' DAY TO SECOND
lead + INTERVAL 1 HOUR = INTERVAL 7 HOURS
-lead > INTERVAL 0 SECONDS
time + lead > '2024-08-01'
lead BETWEEN INTERVAL 1 HOUR AND INTERVAL 1 DAY
"""

# What Spark refuses under ANSI, at analysis or on the data, we refuse too.
REFUSED = r"""
i / 0 > 1
i % t = 0
i DIV t = 0
pmod(i, t) = 0
CASE WHEN flag IS NOT TRUE THEN 1 / t > 0 ELSE TRUE END
d / d > 1
s = 1
flag > 1
time > 5
time > 'abc'
nothing = 1
i
CAST(d AS INT) = 1
i + 1 > 0
CAST(i AS TINYINT) = 1
b * 2 > 0
abs(t) > 0
-i > 0
CAST('x' AS INT) = i
f >
floor(d) > 1
ceil(d) < 1
floor(f) > 1
"""


def expressions(text: str) -> list[str]:
    return [line for line in text.strip().splitlines() if not line.startswith("--")]


def ours(sql: str) -> list[int]:
    planned = plan_where(sql, {name: values.type for name, values in COLUMNS.items()}, [])
    if planned.never:
        return []
    if planned.residual is None:
        return list(range(ROWS))
    kept = planned.residual.evaluate(COLUMNS, ROWS)
    assert not kept.null_count
    return [row for row, keep in enumerate(kept.to_pylist()) if keep]


def answers(subject: str) -> dict[str, Any]:
    """Return the answers of Spark, by expression."""
    return json.loads(_ANSWERS.read_text())[subject]


def check_answers(subject: str, of_spark: dict[str, Any]) -> None:
    """Compare the answers that are kept with those of Spark, or write these."""
    every = json.loads(_ANSWERS.read_text()) if _ANSWERS.exists() else {}
    if "WHERE_UPDATE" in os.environ:
        every[subject] = of_spark
        _ANSWERS.write_text(json.dumps(every, indent=1, ensure_ascii=False) + "\n")
    assert every[subject] == of_spark, "WHERE_UPDATE=1 writes the answers again"
