"""Errors show a short text of what they concern."""

from __future__ import annotations

import sqlglot
from sqlglot import exp

from icechunk_format.tables.selection.where.syntax import sql_text


def test_texts_for_errors_have_at_most_200_letters_and_no_comments() -> None:
    assert sql_text(exp.column("a" * 200)) == repr("a" * 200)
    assert sql_text(exp.column("a" * 200 + "b")) == repr("a" * 200 + "…")
    parsed = sqlglot.parse_one("v /* why */ + 1", dialect="spark")
    assert sql_text(parsed) == "'v + 1'"
