"""Every text prints, and texts that differ look different."""

from datetime import UTC, datetime

import pytest
from helpers.files.hostile_texts import check_printable
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.display.plain_text import (
    one_line,
    safe,
    safe_lines,
    shown_time,
    shown_value,
    size,
)
from icechunk_format.options.values import parse_timestamp


@given(st.text())
def test_safe_text_prints_and_differs_where_texts_differ(text):
    check_printable(safe(text))
    assert safe(text).isprintable()
    assert "\n" not in safe(text)
    for line in safe_lines(text):
        assert line.isprintable()
    assert one_line(text).isprintable()
    assert shown_value({text: [text, None, True, 1.5]}).isprintable()
    if text.isprintable():
        assert safe(text) == text


def test_ordinary_words_of_all_languages_stay():
    for text in ("Größe", "温度", "درجة الحرارة", "température 🌡", "a b"):
        assert safe(text) == text


def test_lines_of_a_message():
    assert safe_lines("\n\n one\r\n\ttwo\n\nthree\n\n") == [" one", "    two", "", "three"]
    assert safe_lines("") == []
    assert one_line("two conflicts:\n  one;\n  two\n") == "two conflicts: one; two"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_949, "99.9 kB"),
        (99_950, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (2**63, "9.2 EB"),
        (None, "?"),
    ],
)
def test_sizes(count, text):
    assert size(count) == text


@given(st.datetimes(datetime(1970, 1, 1), datetime(9998, 12, 31), timezones=st.just(UTC)))
def test_as_of_with_a_displayed_time_selects_the_snapshot(committed_at):
    found = parse_timestamp("asOf", shown_time(committed_at))
    assert 0 <= (found - committed_at).total_seconds() < 1


@pytest.mark.parametrize("microsecond", [0, 999_999])
def test_the_last_second_of_all_is_displayed(microsecond):
    last = datetime(9999, 12, 31, 23, 59, 59, microsecond, UTC)
    assert shown_time(last) == "9999-12-31 23:59:59 UTC"
