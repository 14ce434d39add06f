"""Units of months and years, whose length varies, leave a variable encoded, with a warning."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.tables.cf import attribute_decoder, parse_time_units
from icechunk_format.zarr.data_types import data_type_from_numpy


@pytest.mark.parametrize("unit", ["months", "month", "years", "year"])
@pytest.mark.parametrize("calendar", [None, "standard", "noleap"])
def test_a_variable_of_months_stays_encoded(unit, calendar, caplog):
    attributes = {"units": f"{unit} since 2000-01-01", "long_name": "month"}
    attributes |= {} if calendar is None else {"calendar": calendar}
    with caplog.at_level(logging.WARNING):
        decoder = attribute_decoder(attributes, data_type_from_numpy("f8"), name="t")
    assert decoder.attributes["units"] == attributes["units"]
    assert decoder.decode(np.array([0.0, 1.5])).to_pylist() == [0.0, 1.5]
    assert "'t' is not decoded" in caplog.text


def test_months_of_30_days_are_decoded():
    attributes = {"units": "months since 2000-01-01", "calendar": "360_day"}
    decoder = attribute_decoder(attributes, data_type_from_numpy("i4"), name="t")
    assert decoder.decode(np.array([1], "i4")).to_pylist() == ["2000-02-01T00:00:00"]


@pytest.mark.parametrize(
    ("zone", "shift"), [("0:0", 0), ("+0:0", 0), ("00:00", 0), ("-5:30", 5.5), ("+1:00", -1)]
)
def test_zones_of_reference_dates(zone, shift):
    units = f"days since 2000-01-01 00:00:00 {zone}"
    found = parse_time_units(units, None, name="t").offset
    plain = parse_time_units("days since 2000-01-01", None, name="t").offset
    assert found - plain == shift * 3_600_000_000


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Oslo", "EST", "5:30", "05:30"])
def test_zones_without_one_meaning_are_refused(zone):
    """Names are read as UTC by xarray and cftime, and 5:30 as three different times."""
    with raises(InvalidInputError) as caught:
        parse_time_units(f"days since 2000-01-01 00:00:00 {zone}", None, name="t")
    assert f"{zone!r} is not an offset such as -05:00" in caught.value.message
