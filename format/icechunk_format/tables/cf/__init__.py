"""Applies CF conventions: decodes stored values to Arrow columns, and encodes them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icechunk_format.names import loaded_on_use

if TYPE_CHECKING:
    from icechunk_format.tables.cf.arrow_values import is_number, scattered
    from icechunk_format.tables.cf.attributes import numeric_missing
    from icechunk_format.tables.cf.calendars import (
        GREGORIAN_CALENDARS,
        GREGORIAN_REFORM,
        canonical_calendar,
        day_number,
    )
    from icechunk_format.tables.cf.decode import VariableDecoder, attribute_decoder
    from icechunk_format.tables.cf.encode import VariableEncoder, missing_value, variable_encoder
    from icechunk_format.tables.cf.encode_times import stored_times
    from icechunk_format.tables.cf.round_trip import changed_times
    from icechunk_format.tables.cf.times import (
        MICROSECONDS_PER_DAY,
        NOT_A_TIME,
        TimeScale,
        has_varying_unit,
        parse_time_units,
    )

__all__ = [
    "GREGORIAN_CALENDARS",
    "GREGORIAN_REFORM",
    "MICROSECONDS_PER_DAY",
    "NOT_A_TIME",
    "TimeScale",
    "VariableDecoder",
    "VariableEncoder",
    "attribute_decoder",
    "canonical_calendar",
    "changed_times",
    "day_number",
    "has_varying_unit",
    "is_number",
    "missing_value",
    "numeric_missing",
    "parse_time_units",
    "scattered",
    "stored_times",
    "variable_encoder",
]

__getattr__, __dir__ = loaded_on_use(
    __name__,
    {
        ".arrow_values": ["is_number", "scattered"],
        ".attributes": ["numeric_missing"],
        ".calendars": [
            "GREGORIAN_CALENDARS",
            "GREGORIAN_REFORM",
            "canonical_calendar",
            "day_number",
        ],
        ".decode": ["VariableDecoder", "attribute_decoder"],
        ".encode": ["VariableEncoder", "missing_value", "variable_encoder"],
        ".encode_times": ["stored_times"],
        ".round_trip": ["changed_times"],
        ".times": [
            "MICROSECONDS_PER_DAY",
            "NOT_A_TIME",
            "TimeScale",
            "has_varying_unit",
            "parse_time_units",
        ],
    },
)
