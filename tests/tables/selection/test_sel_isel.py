"""``sel`` and ``isel`` read what users type, and errors name what cannot be read.

Long because each type of labels has strings and values of its own.
"""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest
from helpers.raised import raises
from hypothesis import given
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError, UnsupportedError
from icechunk_format.tables import combined_selection
from icechunk_format.tables.selection.labels import Labels
from icechunk_format.tables.selection.sel_isel import resolve_isel, resolve_sel, single_selectors

cftime = pytest.importorskip("cftime", reason="a user's labels; the format does not need it")
pd = pytest.importorskip("pandas", reason="a user's labels; the format does not need it")

HOURS = np.arange("2024-07-01", "2024-07-03", dtype="M8[h]").astype("M8[us]")
COORDINATES = {
    "time": pa.array(HOURS),
    "latitude": pa.array(np.array([45.0, 40.1, 35, 30, 25], "f4")),
    "longitude": pa.array(np.array([0, 10, 20, 30])),
    "station": pa.array(["oslo", "a:b", "rome"]),
    "sorted": pa.array(["amsterdam", "bern", "oslo", "rome"]),
    "twice": pa.array(["a", "b", "b", "a", "c"]),
    "month": pa.array(["2001-01-15T00:00:00", "2001-02-15T00:00:00", "2001-02-30T12:00:00"]),
    "lead": pa.array(np.array([0, 6, 12, 24]) * 3_600_000_000, pa.duration("us")),
    "shuffled": pa.array([3.0, None, 1.0, 2.0]),
    "raw": pa.array([b"a", b"b"]),
}
SIZES = {name: len(values) for name, values in COORDINATES.items()}


def sel(text: str | dict, method: str | None = None) -> dict[str, list[int]]:
    found = resolve_sel(text, SIZES, COORDINATES.__getitem__, method=method)
    return {name: selection.positions().tolist() for name, selection in found.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("time=2024-07-02", list(range(24, 48))),
        ("time=2024-07", list(range(48))),
        ("time=2024-07-01T06:00", [6]),
        ("time=2024-07-01 06:00:00Z", [6]),
        ("time=2024-07-01T06:00:2024-07-01T08:00", [6, 7, 8]),
        ("time=2024-07-01T22:2024-07-02T00:00", [22, 23, 24]),
        ("time=2024-07-01T06:00:00:2024-07-01T07", [6, 7]),
        ("time=2024-07-01T21..2024-07-01", [21, 22, 23]),
        ("time=:2024-07-01T01", [0, 1]),
        ("time=2024-07-02T22:30:", [47]),
        ("time=2024-07-01T02,2024-07-02T05:00", [2, 29]),
        ("time=2030:2031", []),
        ("time=2024-07-01T02:00+02:00", [0]),
        ("time=2024-07-02T23:30+23:30", [24]),
        ("latitude=35:45", [0, 1, 2]),
        ("latitude=45:35", [0, 1, 2]),
        ("latitude=35:", [2, 3, 4]),
        ("latitude=:35", [0, 1, 2]),
        ("latitude=40.1", [1]),
        ("latitude=40.1:40.1", [1]),
        ("latitude=100:200", []),
        ("longitude=10:20", [1, 2]),
        ("longitude=20:10", []),
        ("longitude=:", [0, 1, 2, 3]),
        ("longitude=9.5:", [1, 2, 3]),
        ("longitude=0,30", [0, 3]),
        ("Longitude=10", [1]),
        ("station=a:b", [1]),
        ("station=rome", [2]),
        ("station=oslo..a:b", [0, 1]),
        ("station=a:b..rome", [1, 2]),
        ("station=rome:oslo", []),
        ("station=..a:b", [0, 1]),
        ("sorted=b:p", [1, 2]),
        ("sorted=p:b", []),
        ("month=2001-02", [1, 2]),
        ("month=2001-01:2001-02-15", [0, 1]),
        ("month=2001-01-15T00:00:2001-02-15T00:00", [0, 1]),
        ("month=2001-01-15T00:00:00:2001-02", [0, 1, 2]),
        ("lead=6h", [1]),
        ("lead=1h:0.5 days", [1, 2]),
        ("lead=1 day", [3]),
        ("shuffled=1:2", [2, 3]),
        ("shuffled=3", [0]),
    ],
)
def test_labels(text: str, expected: list[int]) -> None:
    assert list(sel(text).values()) == [expected]


def test_several_dimensions() -> None:
    expected = {"latitude": [1], "longitude": [0, 1]}
    assert sel("latitude=40.1; longitude=0:10") == expected
    assert sel("latitude=40.1, longitude=0:10;") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("latitude=39", [1]),
        ("time=2024-07-01T06:29", [6]),
        ("lead=11h", [2]),
        ("longitude=99", [3]),
        ("longitude=15", [2]),
        ("latitude=27.5", [3]),
        ("time=2024-07-01T06:30", [7]),
        ("lead=9h", [2]),
        ("shuffled=1.5", [3]),
    ],
)
def test_nearest(text: str, expected: list[int]) -> None:
    assert list(sel(text, "nearest").values()) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("x=2:4", [2, 3, 4]), ("x=7:", [7, 8]), ("x=3", [3]), ("x=1,5", [1, 5]), ("x=20:30", [])],
)
def test_positions_are_the_labels_of_a_dimension_without_coordinates(text, expected) -> None:
    found = resolve_sel(text, {"x": 9}, lambda name: range(9))
    assert found["x"].positions().tolist() == expected


@pytest.mark.parametrize("text", ["latitude=", "=35", "=", "latitude"])
def test_a_part_has_a_dimension_and_a_selector(text) -> None:
    with raises(InvalidInputError, match="not <dimension>=<selector>", option="sel", found=text):
        sel(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time=2024-07-01T02:00+24:00", "not a range low:high"),
        ("latitude=40.2", r"nearest values are 45.0, 40.1, 35.0.*sel.method=nearest"),
        ("time=2025", r"no value '2025'; the nearest values are .*2024-07-02T23:00:00"),
        ("time=noon", "not a date or time such as 2024-07"),
        ("time=2024-07-01:noon", "not a range low:high"),
        ("latitude=a:b", "not a range low:high whose ends are each a number"),
        ("latitude=35:45:2", "use isel for steps"),
        ("lead=fast", "not a duration such as 6h"),
        ("latitud=3", "no dimension 'latitud'; did you mean 'latitude'"),
        ("latitude", "not <dimension>=<selector>"),
        ("latitude=30; latitude=35", "given twice"),
        ("station=b:p", "no value 'b'; its first values are 'oslo'"),
        ("twice=a:c", "has the value 'a' at 2 separate positions"),
        ("station=paris", "no value 'paris'; its first values are 'oslo'"),
    ],
)
def test_what_cannot_be_read(text: str, message: str) -> None:
    name, equals, _ = text.partition("=")
    facts = {"dimension": name} if equals else {"option": "sel", "found": text}
    with raises(InvalidInputError, match=message, **facts):
        sel(text)


def test_limits_of_methods_and_types() -> None:
    with raises(InvalidInputError, option="sel.method", found="pad"):
        sel("latitude=3", "pad")
    with raises(InvalidInputError, option="sel.method", dimension="station"):
        sel("station=x", "nearest")
    with raises(UnsupportedError, option="sel", dimension="raw"):
        sel("raw=a")


def test_values_of_63_bits_are_told_apart() -> None:
    values = pa.array([2**60, 2**60 + 2, 2**60 + 4])
    found = resolve_sel("n=1152921504606846977", {"n": 3}, lambda _: values, method="nearest")
    assert found["n"].positions().tolist() == [1]


@pytest.mark.needs_reference
@given(
    st.lists(st.integers(-20, 20), min_size=1, max_size=6, unique=True).map(sorted),
    st.booleans(),
    st.integers(-50, 50),
    st.sampled_from(["i2", "i8", "f4", "f8", "M8[us]"]),
)
def test_the_nearest_value_is_that_of_xarray(labels, is_descending, halves, dtype) -> None:
    import xarray

    values = np.array(labels[:: -1 if is_descending else 1]).astype("i8")
    if dtype == "M8[us]":
        stored = values.astype("M8[D]").astype("M8[us]")
        wanted = np.datetime64(halves * 12, "h").astype("M8[us]")
        text = str(wanted)
    else:
        stored, wanted = values.astype(dtype), halves / 2
        text = str(wanted)
    data = xarray.DataArray(np.arange(len(stored)), dims="d", coords={"d": stored})
    found = resolve_sel(
        f"d={text}", {"d": len(stored)}, lambda _: pa.array(stored), method="nearest"
    )
    assert found["d"].positions().tolist() == [int(data.sel(d=wanted, method="nearest"))]


@pytest.mark.needs_reference
@given(
    st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6, unique=True),
    *(st.one_of(st.none(), st.sampled_from("abcdefgh")) for _ in range(2)),
)
def test_ranges_of_texts_are_those_of_xarray(labels, low, high) -> None:
    import xarray

    is_descending = labels == sorted(labels, reverse=True) and len(labels) > 1
    if is_descending and low is not None and high is not None and low < high:
        return  # Taken as the other way round here; nothing in xarray.
    data = xarray.DataArray(np.arange(len(labels)), dims="d", coords={"d": labels})

    def ours() -> list[int]:
        text = f"d={low or ''}..{high or ''}"
        return (
            resolve_sel(text, {"d": len(labels)}, lambda _: pa.array(labels))["d"]
            .positions()
            .tolist()
        )

    try:
        expected = data.sel(d=slice(low, high)).values.tolist()
    except KeyError:
        with raises(InvalidInputError, match="no value", dimension="d"):
            ours()
    else:
        assert ours() == expected


@pytest.mark.needs_reference
@given(
    st.lists(st.integers(0, 6), min_size=2, max_size=8).map(lambda labels: sorted(labels)[::-1]),
    *(st.one_of(st.none(), st.integers(-1, 7)) for _ in range(2)),
)
def test_ranges_of_descending_labels_with_repeats_are_those_of_xarray(labels, low, high) -> None:
    import xarray

    if labels[0] == labels[-1] or (low is not None and high is not None and low < high):
        return  # One label has no direction; the other way round selects nothing in xarray.
    data = xarray.DataArray(np.arange(len(labels)), dims="d", coords={"d": labels})
    ends = ["" if end is None else str(end) for end in (low, high)]
    found = resolve_sel("d=" + ":".join(ends), {"d": len(labels)}, lambda _: pa.array(labels))
    assert found["d"].positions().tolist() == data.sel(d=slice(low, high)).values.tolist()


@given(
    *(st.one_of(st.none(), st.integers(-8, 8)) for _ in range(2)),
    st.one_of(st.none(), st.integers(-3, 3).filter(bool)),
)
def test_isel_slices_are_those_of_numpy(a: int | None, b: int | None, step: int | None) -> None:
    text = ":".join("" if part is None else str(part) for part in (a, b, step))
    found = resolve_isel(f"latitude={text}", SIZES)["latitude"]
    assert found.positions().tolist() == sorted(np.arange(5)[a:b:step].tolist())


@pytest.mark.parametrize(
    ("text", "expected"),
    [("latitude=-1", [4]), ("latitude=4,0,0", [0, 4]), ("latitude=-5:", [0, 1, 2, 3, 4])],
)
def test_isel_positions(text: str, expected: list[int]) -> None:
    assert resolve_isel(text, SIZES)["latitude"].positions().tolist() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("latitude=5", "has 5 positions, -5 to 4"),
        ("latitude=35.5", "use sel for values"),
        ("latitude=1:2:0", "step 0"),
        ("latitude=a:b", "not a slice"),
        ("lat=1", "did you mean 'latitude'"),
    ],
)
def test_isel_refuses(text: str, message: str) -> None:
    dimension = text.partition("=")[0]
    with raises(InvalidInputError, match=message, option="isel", dimension=dimension):
        resolve_isel(text, SIZES)


HOUR = datetime.datetime(2024, 7, 1, 6)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"time": HOUR}, "time=2024-07-01T06:00:00"),
        ({"time": HOUR.replace(tzinfo=datetime.UTC)}, "time=2024-07-01T06:00:00"),
        ({"time": HOUR.date()}, "time=2024-07-01"),
        ({"time": np.datetime64("2024-07-01T06")}, "time=2024-07-01T06"),
        ({"time": np.datetime64("2024-07-01")}, "time=2024-07-01"),
        ({"time": np.datetime64("2024-07")}, "time=2024-07"),
        ({"time": 2024}, "time=2024"),
        ({"time": pd.Timestamp(HOUR)}, "time=2024-07-01T06:00:00"),
        ({"time": pd.DatetimeIndex([HOUR, "2024-07-02"])}, "time=2024-07-01T06,2024-07-02T00"),
        ({"time": HOURS[[3, 5]]}, "time=2024-07-01T03,2024-07-01T05"),
        ({"time": slice(HOUR, None)}, "time=2024-07-01T06:00:00.."),
        ({"time": slice(None, HOUR.date())}, "time=..2024-07-01"),
        ({"time": slice("2024-07-01T21", "2024-07-01")}, "time=2024-07-01T21..2024-07-01"),
        ({"time": ["2024-07-01T02", HOUR]}, "time=2024-07-01T02,2024-07-01T06:00:00"),
        ({"time": "2024-07-01T06:00:2024-07-01T08:00"}, "time=2024-07-01T06:00:2024-07-01T08:00"),
        ({"time": cftime.DatetimeGregorian(2024, 7, 1, 6)}, "time=2024-07-01T06:00:00"),
        ({"latitude": slice(35, 45.5)}, "latitude=35..45.5"),
        ({"latitude": slice(45.5, 35)}, "latitude=45.5..35"),
        ({"latitude": 40.1}, "latitude=40.1"),
        ({"latitude": np.float32(40.1)}, "latitude=40.1"),
        ({"latitude": np.array(35)}, "latitude=35"),
        ({"LATITUDE": [45, 30]}, "latitude=45,30"),
        ({"longitude": np.array([0, 30], "u1")}, "longitude=0,30"),
        ({"longitude": range(0, 30, 10)}, "longitude=0,10,20"),
        ({"longitude": pd.Index([10.0, 20.0])}, "longitude=10,20"),
        ({"longitude": slice(9.5, None)}, "longitude=9.5:"),
        ({"station": ["oslo", "a:b"]}, "station=oslo,a:b"),
        ({"station": pd.Series(["rome"])}, "station=rome"),
        ({"station": slice("oslo", "a:b")}, "station=oslo..a:b"),
        ({"month": cftime.DatetimeNoLeap(2001, 2, 15)}, "month=2001-02-15T00:00:00"),
        ({"lead": np.timedelta64(6, "h")}, "lead=6h"),
        ({"lead": datetime.timedelta(hours=12)}, "lead=12h"),
        ({"lead": slice(np.timedelta64(0, "ns"), np.timedelta64(6, "h"))}, "lead=0h:6h"),
        ({"time": HOUR, "longitude": 10}, "time=2024-07-01T06:00:00; longitude=10"),
    ],
)
def test_values_select_what_their_text_selects(values, text) -> None:
    assert sel(values) == sel(text)


@pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning")  # of pandas 2
def test_durations_of_pandas_are_values() -> None:
    assert sel({"lead": pd.Timedelta("1D")}) == sel("lead=24h")
    assert sel({"lead": pd.TimedeltaIndex(["6h", "12h"])}) == sel("lead=6h,12h")


@pytest.mark.needs_reference
def test_labels_of_xarray_are_values() -> None:
    import xarray

    data = xarray.DataArray([1, 2], dims="t", coords={"t": np.array([0, 6], "m8[h]")})
    assert sel({"lead": data.t}) == {"lead": [0, 1]}
    assert sel({"lead": data.t[1]}) == {"lead": [1]}


def test_a_text_with_marks_of_the_grammar_is_one_label() -> None:
    names = {"name": pa.array(["a;b", "c,d", "e..f"])}
    for at, name in enumerate(names["name"].to_pylist()):
        found = resolve_sel({"name": [name]}, {"name": 3}, names.__getitem__)
        assert found["name"].positions().tolist() == [at]


def test_nearest_takes_values() -> None:
    assert sel({"time": HOUR + datetime.timedelta(minutes=20)}, "nearest") == {"time": [6]}
    assert sel({"longitude": 14.9}, "nearest") == {"longitude": [1]}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"longitude": slice(0, 9, 2)}, "longitude.*isel for steps"),
        ({"longitude": slice(0, [1])}, "longitude=.*not a number"),
        ({"longitude": np.array([[1, 2]])}, "longitude=.*not a number"),
        ({"longitude": "[10,20]"}, "without brackets: longitude=a,b$"),
        ({"longitude": []}, "longitude has an empty list"),
        ({"longitude": True}, "longitude is given by booleans"),
        ({"longitude": None}, "longitude=None is not a number"),
        ({"longitude": HOUR}, "longitude=.*not a number"),
        ({"lead": np.timedelta64(1, "ns")}, "lead=.*not a duration"),
        ({"lead": np.timedelta64("NaT", "s")}, "lead=.*not a duration"),
        ({"lead": np.timedelta64(1, "M")}, "lead=.*not a duration"),
        ({"lead": np.timedelta64(1, "Y")}, "lead=.*not a duration"),
        ({"lead": pd.Timedelta(1, "ns")}, "lead=.*not a duration"),
        ({"lead": 6}, "lead=6 is not a duration"),
        ({"time": np.datetime64("NaT", "s")}, "time=.*not a date"),
        ({"time": 1.5}, "time=1.5 is not a date"),
        ({"time": cftime.Datetime360Day(2024, 2, 30)}, "time=.*not a date"),
        ({"longitude": 15}, "no value 15; the nearest values are 10, 20"),
        ({"height": 15}, "no dimension 'height'"),
        ({"time": HOUR, "TIME": HOUR}, "given twice"),
    ],
)
def test_values_that_are_no_labels_are_refused(values, says) -> None:
    with raises(InvalidInputError, match=says, dimension=next(iter(values))):
        sel(values)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1, "x=-1"),
        (np.int64(2), "x=2"),
        (np.array(3), "x=3"),
        (slice(0, 4), "x=0:4"),
        (slice(None, None, 2), "x=::2"),
        (slice(np.int64(5), 1, -1), "x=5:1:-1"),
        ((1, 2), "x=1,2"),
        (np.arange(3), "x=0,1,2"),
        (range(0, 6, 2), "x=0,2,4"),
        ("1:3", "x=1:3"),
    ],
)
def test_positions_as_values(value, text) -> None:
    assert resolve_isel({"x": value}, {"x": 6}) == resolve_isel(text, {"x": 6})


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "x=None is not a position"),
        (1.0, "x=1.0 is not a position"),
        (np.timedelta64(1, "s"), "is not a position"),
        ([], "empty list"),
        (slice(0, "a"), "not a slice"),
        (slice(0, 3, 0), "step 0"),
        (np.array([[1]]), "is not a position"),
        (6, "out of bounds"),
    ],
)
def test_values_that_are_no_positions_are_refused(value, says) -> None:
    with raises(InvalidInputError, match=says, option="isel", dimension="x"):
        resolve_isel({"x": value}, {"x": 6})


MASK = np.arange(5) % 3 == 0


@pytest.mark.parametrize(
    "mask", [MASK, MASK.tolist(), tuple(MASK), pd.Series(MASK), pa.array(MASK)], ids=type
)
def test_a_mask_selects_its_true_positions(mask) -> None:
    assert resolve_isel({"latitude": mask}, SIZES)["latitude"].positions().tolist() == [0, 3]


@pytest.mark.parametrize(
    "value", [True, np.False_, [True], MASK[:4], [True, 0, 1, 2, 3], [1, np.True_]], ids=repr
)
def test_other_booleans_are_no_positions(value) -> None:
    with raises(InvalidInputError, match="each of the 5 positions", option="isel"):
        resolve_isel({"latitude": value}, SIZES)


def test_a_slice_of_booleans_is_refused() -> None:
    with raises(InvalidInputError, match="is not a slice", option="isel"):
        resolve_isel({"latitude": slice(False, True)}, SIZES)


@pytest.mark.parametrize("name", ["latitude", "longitude", "time", "station", "lead"])
@pytest.mark.parametrize("value", [True, np.True_, [True, False]], ids=repr)
def test_booleans_are_labels_of_booleans_only(name, value) -> None:
    with raises(InvalidInputError, match="a mask belongs to isel", option="sel", dimension=name):
        sel({name: value})


def test_booleans_are_labels_of_booleans() -> None:
    flags = pa.array([False, True])
    found = resolve_sel({"flag": [np.True_]}, {"flag": 2}, lambda _: flags)
    assert found["flag"].positions().tolist() == [1]


@pytest.mark.parametrize(
    ("value", "exactly", "positions"),
    [
        (40.1, True, [1]),
        ("40.1", True, [1]),
        (40.1 * 3 / 3, True, [1]),
        (slice(30, 40.1), True, [1, 2, 3]),
        (float(np.float32(40.1)), True, [1]),
        (40.10000001, False, [1]),
    ],
)
def test_exact_labels_of_short_floats(value, exactly, positions) -> None:
    coordinate = COORDINATES.__getitem__
    found = resolve_sel({"latitude": value}, SIZES, coordinate, exactly=exactly)
    assert found["latitude"].positions().tolist() == positions


def test_an_exact_label_is_not_rounded() -> None:
    with raises(InvalidInputError, match=r"has no value 40.10000001; the nearest"):
        resolve_sel({"latitude": 40.10000001}, SIZES, COORDINATES.__getitem__, exactly=True)


@pytest.mark.parametrize(
    ("sel", "isel", "expected"),
    [
        (None, None, {}),
        (None, "latitude=0:2", {"latitude": [0, 1]}),
        ({"x": slice(1, 3)}, None, {"x": [1, 2, 3]}),
        ({"x": slice(1, 3)}, "x=0:3; latitude=1", {"x": [1, 2], "latitude": [1]}),
        ({"x": [4]}, "x=0:3", {"x": []}),
    ],
)
def test_both_options_select_what_each_of_them_selects(sel, isel, expected):
    sizes = {"x": 5, "latitude": 4}
    found = combined_selection(sizes, lambda _: pa.array(range(5)), sel=sel, isel=isel)
    assert {dim: one.positions().tolist() for dim, one in found.items()} == expected


def test_a_value_of_whole_seconds_selects_its_second() -> None:
    halves = {"t": pa.array(np.arange(4) * 500_000, pa.timestamp("us"))}

    def found(value: object) -> list[int]:
        chosen = resolve_sel({"t": value}, {"t": 4}, halves.__getitem__)
        return chosen["t"].positions().tolist()

    assert found(datetime.datetime(1970, 1, 1)) == [0, 1] == found("1970-01-01T00:00:00")
    assert found(datetime.datetime(1970, 1, 1, 0, 0, 0, 500_000)) == [1]


def test_an_empty_dimension_of_texts_has_no_labels() -> None:
    empty = {"s": pa.array([], pa.string())}
    for text in ("s=a:b", "s=a..b", "s=2001:2002"):
        assert resolve_sel(text, {"s": 0}, empty.__getitem__)["s"].count == 0


@pytest.mark.parametrize("values", ["aabbc", "cbbaa", "aaaaa", "a", ""])
def test_equal_texts_may_repeat_in_a_sorted_dimension(values: str) -> None:
    labels = pa.array(list(values), pa.string())
    assert Labels(labels, "n").is_sorted
    found = resolve_sel("n=0:b5", {"n": len(values)}, {"n": labels}.__getitem__)
    assert found["n"].positions().tolist() == [at for at, one in enumerate(values) if one <= "b"]
    assert not Labels(pa.array(["a", "c", "b"]), "n").is_sorted


@pytest.mark.parametrize("value", [10.5, np.float32(10.5)])
def test_a_fraction_is_no_label_of_integers(value: float) -> None:
    with raises(InvalidInputError, dimension="longitude"):
        sel({"longitude": value})
    assert sel({"longitude": slice(value, 20.5)}) == {"longitude": [2]}


def test_the_nearest_values_of_an_error_are_values() -> None:
    with raises(
        InvalidInputError, match=r"has no value '1\.2'; the nearest values are 1\.0, 2\.0\."
    ):
        sel("shuffled=1.2")
    with raises(InvalidInputError, match=r"the nearest values are 3\.0\. Name one"):
        sel({"shuffled": 4})


def test_labels_are_shown_as_they_are_given() -> None:
    lead = Labels(COORDINATES["lead"], "lead")
    assert [lead.show(at) for at in (1, 3)] == ["6:00:00", "1 day, 0:00:00"]
    assert Labels(COORDINATES["time"], "time").show(6) == "2024-07-01T06:00:00"
    assert Labels(COORDINATES["station"], "station").show(1) == "a:b"


def test_single_values_are_told_from_ranges_and_lists() -> None:
    sizes = {"x": 4, "y": 4, "z": 4}
    for given_, expected in (
        (None, {}),
        ({"x": 1, "y": slice(0, 2), "z": [1, 2]}, {"x": False}),
        ({"x": "a", "y": "a:b", "z": "a,b"}, {"x": True}),
        ({"x": "a..b", "y": 2.5}, {"y": False}),
        ("x=1; y=0:2; z=3", {"x": True, "z": True}),
    ):
        assert single_selectors("sel", given_, sizes) == expected
