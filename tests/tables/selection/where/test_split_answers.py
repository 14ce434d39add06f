"""``where`` keeps the rows that Spark kept, whose answers `helpers/where` keeps."""

from __future__ import annotations

import pytest
from helpers.where.expressions import EXPRESSIONS, REFUSED, answers, expressions, ours
from helpers.where.time_zones import KEPT, Change, conditions, digest, kept_rows

from icechunk_format.errors import InvalidInputError


@pytest.mark.parametrize("sql", expressions(EXPRESSIONS))
def test_an_expression_keeps_the_rows_that_spark_kept(sql: str) -> None:
    assert " ".join(map(str, ours(sql))) == answers("expressions")[sql]


@pytest.mark.parametrize("sql", expressions(REFUSED))
def test_what_spark_refused_is_refused(sql: str) -> None:
    with pytest.raises(InvalidInputError):
        ours(sql)


@pytest.mark.parametrize("change", KEPT, ids=lambda change: change.zone)
def test_conditions_on_times_keep_the_rows_that_spark_kept(change: Change) -> None:
    found = {sql: digest(kept_rows(change, sql)) for sql in conditions(change)}
    expected = answers(change.zone)
    assert {sql: text for sql, text in found.items() if text != expected[sql]} == {}
    assert len(found) == len(expected)
