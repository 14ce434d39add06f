"""HDF5 datasets of any layout, filters and type are committed as h5py reads them, or refused.

Long because the generator of datasets and the cases that it covers belong together.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from helpers.archives.running import by_reference, virtualize
from helpers.examples import by_day
from helpers.raised import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError
from icechunk_format.workflows.virtualizing.planning.copies import Copying

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("virtualizarr")
pytestmark = [
    pytest.mark.needs_reference,
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

HAS_PLUGINS = importlib.util.find_spec("hdf5plugin") is not None
if HAS_PLUGINS:
    import hdf5plugin

LAYOUTS = ("contiguous", "chunked", "compact", "virtual", "external")
FILTERS = ("shuffle", "gzip", "fletcher32", "lzf", "scaleoffset", "nbit", "blosc", "zstd", "bzip2")
IN_CHUNKS = ("shuffle", "gzip", "fletcher32", "zstd", "bzip2", "blosc")
"""Filters that Zarr has codecs for."""


def _spaces() -> h5py.h5t.TypeID:
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(3)
    kind.set_strpad(h5py.h5t.STR_SPACEPAD)
    return kind


def _bits(base: h5py.h5t.TypeID, precision: int, offset: int) -> h5py.h5t.TypeID:
    kind = base.copy()
    kind.set_precision(precision)
    kind.set_offset(offset)
    return kind


def _gaps() -> h5py.h5t.TypeID:
    kind = h5py.h5t.create(h5py.h5t.COMPOUND, 12)
    kind.insert(b"a", 0, h5py.h5t.STD_I16LE)
    kind.insert(b"b", 4, h5py.h5t.IEEE_F64LE)
    return kind


def _biased() -> h5py.h5t.TypeID:
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_ebias(100)
    return kind


PLAIN = {
    name: h5py.h5t.py_create(np.dtype(name), logical=True)
    for name in ("i1", "u1", "<i2", ">i2", "<i4", ">u4", "<u8", "<f2", ">f4", "<f8", ">f8", "S3")
} | {
    "bool": h5py.h5t.py_create(np.dtype(bool), logical=True),
    "enum": h5py.h5t.py_create(h5py.enum_dtype({"a": 0, "b": 1, "c": 2}, "i2"), logical=True),
    "pair": h5py.h5t.py_create(np.dtype([("a", "<i2"), ("b", "<f8")])),
}
OTHER = {
    "12 bits": _bits(h5py.h5t.STD_I16LE, 12, 0),
    "12 bits from bit 4": _bits(h5py.h5t.STD_I32LE, 12, 4),
    "20 bits, big endian": _bits(h5py.h5t.STD_U32BE, 20, 7),
    "padded with blanks": _spaces(),
    "gaps": _gaps(),
    "mixed byte orders": h5py.h5t.py_create(np.dtype([("a", ">i2"), ("b", "<f8")])),
    "exponents with a bias": _biased(),
}
TYPES = PLAIN | OTHER


@dataclass(frozen=True)
class Made:
    """One way to store a dataset."""

    kind: str
    layout: str
    filters: tuple[str, ...] = ()
    mask: int = 0
    chunk: int = 3
    unwritten: bool = False

    @property
    def type(self) -> h5py.h5t.TypeID:
        return TYPES[self.kind]


@st.composite
def stored_in_any_way(draw: Any) -> Made:
    kind = draw(st.sampled_from(sorted(TYPES)))
    layout = draw(st.sampled_from((*LAYOUTS, "chunked", "chunked", "chunked")))
    if layout != "chunked":
        return Made(kind, layout)
    able = [name for name in FILTERS if HAS_PLUGINS or name not in ("blosc", "zstd", "bzip2")]
    if kind not in ("<i2", ">i2", "<i4", ">u4", "i1", "u1", "12 bits"):
        able = [name for name in able if name not in ("scaleoffset", "nbit")]
    filters = draw(st.lists(st.sampled_from(able), unique=True, max_size=3))
    if {"scaleoffset", "nbit"} <= {*filters}:  # the library cannot read them together
        filters.remove("nbit")
    # These two read the elements, so the library accepts them only in front of others.
    filters.sort(key=lambda name: name not in ("scaleoffset", "nbit"))
    if "lzf" in filters:  # crashes the library behind filters that make chunks longer
        filters = [*(name for name in filters if name == "shuffle"), "lzf"]
    mask = draw(st.integers(0, 2 ** len(filters) - 1) | st.just(0))
    return Made(kind, layout, tuple(filters), mask, draw(st.integers(1, 4)), draw(st.booleans()))


def values_of(made: Made, number: int, count: int = 6) -> np.ndarray:
    counted = np.arange(count) + count * number
    match made.kind:
        case "S3" | "padded with blanks":
            return np.array([b"abc"[: n % 4] for n in counted], "S3")
        case "bool" | "enum":
            return counted % 2
        case "pair" | "gaps" | "mixed byte orders":
            return np.array([(n, n / 2) for n in counted], [("a", "i2"), ("b", "f8")])
    return counted


def set_filter(plist: h5py.h5p.PropDCID, name: str) -> None:
    match name:
        case "shuffle":
            plist.set_shuffle()
        case "gzip":
            plist.set_deflate(4)
        case "fletcher32":
            plist.set_fletcher32()
        case "scaleoffset":
            plist.set_scaleoffset(h5py.h5z.SO_INT, 0)
        case "lzf" | "nbit":
            code = {"lzf": h5py.h5z.FILTER_LZF, "nbit": h5py.h5z.FILTER_NBIT}[name]
            plist.set_filter(code, h5py.h5z.FLAG_OPTIONAL, ())
        case _:
            made = {"blosc": hdf5plugin.Blosc, "zstd": hdf5plugin.Zstd, "bzip2": hdf5plugin.BZip2}
            given = made[name]()
            options = tuple(given["compression_opts"])
            plist.set_filter(given["compression"], h5py.h5z.FLAG_OPTIONAL, options)


def create(file: h5py.File, name: str, made: Made, filters: tuple[str, ...], size: int) -> Any:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if made.layout == "chunked":
        plist.set_chunk((made.chunk,))
        for one in filters:
            set_filter(plist, one)
    elif made.layout == "compact":
        plist.set_layout(h5py.h5d.COMPACT)
    space = h5py.h5s.create_simple((size,))
    return h5py.Dataset(h5py.h5d.create(file.id, name.encode(), made.type, space, plist))


def write(path: Path, made: Made, number: int) -> None:
    values = values_of(made, number)
    with h5py.File(path, "w", libver="latest" if made.layout == "virtual" else None) as file:
        time = file.create_dataset("time", data=np.arange(6.0) + 6 * number)
        time.attrs["units"] = "days since 2022-01-01"
        time.make_scale("time")
        if made.layout == "virtual":
            with h5py.File(path.with_suffix(".source"), "w") as source:
                create(source, "v", Made(made.kind, "contiguous"), (), 6)[:] = values
            layout = h5py.VirtualLayout((6,), made.type.dtype)
            layout[:] = h5py.VirtualSource(str(path.with_suffix(".source")), "v", (6,))
            data = file.create_virtual_dataset("v", layout)
        elif made.layout == "external":
            raw = path.with_suffix(".raw")
            raw.write_bytes(bytes(256))
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_external(str(raw).encode(), 0, h5py.h5f.UNLIMITED)
            space = h5py.h5s.create_simple((6,))
            data = h5py.Dataset(h5py.h5d.create(file.id, b"v", made.type, space, plist))
            data[:] = values
        else:
            data = create(file, "v", made, made.filters, 6)
            data[: made.chunk if made.unwritten else 6] = values[
                : made.chunk if made.unwritten else 6
            ]
            if made.mask:
                kept = [f for bit, f in enumerate(made.filters) if not made.mask >> bit & 1]
                # The same chunk without the filters to skip.
                with h5py.File(path.with_suffix(".part"), "w") as other:
                    part = create(other, "v", made, tuple(kept), 6)
                    part[: made.chunk] = values[: made.chunk]
                    other.flush()
                    mask, chunk = part.id.read_direct_chunk((0,))
                if not mask:  # else the library skipped another one
                    data.id.write_direct_chunk((0,), chunk, made.mask)
        data.dims[0].attach_scale(time)


def read(path: Path) -> np.ndarray:
    with h5py.File(path) as file:
        values = file["v"][:]
    return values.astype(values.dtype.newbyteorder("="))


def tried(names: list[str], path: Path, **how: Any) -> str | None:
    """Virtualize files; return the refusal, or None."""
    try:
        virtualize(names, path, **how)
    except InvalidInputError as error:
        return error.message
    return None


@settings(
    max_examples=by_day(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(stored_in_any_way())
def test_a_dataset_is_read_as_h5py_reads_it_or_refused(tmp_path_factory, made):
    folder = tmp_path_factory.mktemp("hdf5")
    files = [folder / f"{number}.nc" for number in range(2)]
    for number, file in enumerate(files):
        write(file, made, number)
    expected = np.concatenate([read(file) for file in files])
    names = [str(file) for file in files]
    problem = tried(names, folder / "repository")
    if problem is not None:
        assert "0.nc: array 'v': " in problem
        assert made.layout in ("virtual", "external") or "copy=" in problem
    else:
        found = by_reference(folder / "repository", mask_and_scale=False)["v"]
        np.testing.assert_array_equal(found, expected)
        assert made.kind in PLAIN or made.layout == "compact"
    problem = tried(names, folder / "copied", copying=Copying(which="mismatching"))
    if problem is not None:
        assert made.layout in ("virtual", "external"), problem
    else:
        found = by_reference(folder / "copied", mask_and_scale=False)["v"]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("layout", ["contiguous", "chunked", "compact"])
@pytest.mark.parametrize("kind", sorted(PLAIN))
def test_plain_datasets_are_referenced(kind, layout, tmp_path):
    write(tmp_path / "0.nc", Made(kind, layout), 0)
    done = virtualize(str(tmp_path / "0.nc"), tmp_path / "repository")
    assert done.references == (2 if layout == "chunked" else 1)
    found = by_reference(tmp_path / "repository", mask_and_scale=False)["v"]
    np.testing.assert_array_equal(found, read(tmp_path / "0.nc"))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (Made("<i4", "chunked", ("fletcher32", "shuffle")), "shuffle follows another filter"),
        (Made("<i4", "chunked", ("gzip", "shuffle")), "shuffle follows another filter"),
        (Made("<i4", "chunked", ("lzf",)), "its filter lzf has no codec of Zarr"),
        (Made("<i4", "chunked", ("scaleoffset",)), "its filter scaleoffset has no codec"),
        (Made("12 bits", "chunked", ("nbit",)), "its filter nbit has no codec"),
        (Made("<f8", "chunked", ("shuffle",), 1), "1 of 2 chunks skipped filters"),
        (Made("<f8", "chunked", ("shuffle", "gzip"), 2), "1 of 2 chunks skipped filters"),
        (Made("12 bits from bit 4", "contiguous"), "12 of 32 bits, from bit 4"),
        (Made("padded with blanks", "contiguous"), "padded with blanks"),
        (Made("gaps", "contiguous"), "gaps or mixed byte orders"),
        (Made("mixed byte orders", "contiguous"), "gaps or mixed byte orders"),
        (Made("exponents with a bias", "contiguous"), "stored in another way than float"),
    ],
    ids=lambda value: None if isinstance(value, Made) else value,
)
def test_what_cannot_be_referenced_is_refused_or_copied(made, reason, tmp_path):
    write(tmp_path / "0.nc", made, 0)
    file = str(tmp_path / "0.nc")
    with raises(InvalidInputError) as caught:
        virtualize(file, tmp_path / "refused")
    error = caught.value
    [row] = error.facts["report"].to_pylist()
    assert row["status"] == "refused"
    assert row["array"] == "v"
    assert reason in row["difference"]
    assert "copy='mismatching'" in row["difference"]
    for which in ("mismatching", "all"):
        done = virtualize(file, tmp_path / which, copying=Copying(which=which))
        assert done.files_copied == 1
        assert done.references == 0
        found = by_reference(tmp_path / which, mask_and_scale=False)["v"]
        np.testing.assert_array_equal(found, read(tmp_path / "0.nc"))
    assert (
        reason
        in virtualize(
            file, tmp_path / "noted", copying=Copying(which="mismatching")
        ).report.to_pylist()[0]["note"]
    )


@pytest.mark.parametrize("layout", ["virtual", "external"])
@pytest.mark.parametrize("copying", [None, Copying(which="all"), Copying(which="mismatching")])
def test_values_in_other_files_are_refused_even_if_copied(copying, layout, tmp_path):
    write(tmp_path / "0.nc", Made("<f8", layout), 0)
    file = str(tmp_path / "0.nc")
    with raises(InvalidInputError) as caught:
        virtualize(file, tmp_path / "r", copying=copying)
    error = caught.value
    assert "0.nc: array 'v': " in error.message
    assert f"{layout}, with values in '{tmp_path}/0." in error.message
    assert "HDFParser(drop_variables=['v'])" in error.message


def test_a_dataset_that_is_left_out_is_not_checked(tmp_path):
    from virtualizarr.parsers import HDFParser

    write(tmp_path / "0.nc", Made("<f8", "virtual"), 0)
    parser = HDFParser(drop_variables=["v"])
    virtualize(str(tmp_path / "0.nc"), tmp_path / "repository", parser=parser)
    assert set(by_reference(tmp_path / "repository").variables) == {"time"}


def test_an_external_link_is_refused(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = [1, 2]
    with h5py.File(tmp_path / "0.nc", "w") as file:
        file["time"] = [1.0, 2.0]
        file["time"].make_scale("time")
        file["v"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
    with raises(InvalidInputError) as caught:
        virtualize(str(tmp_path / "0.nc"), tmp_path / "repository")
    error = caught.value
    assert "array 'v': it is an external link to '/x' in the file" in error.message


def test_strings_and_structures_with_strings_become_inline_chunks(tmp_path):
    records = np.array([(1, "a"), (2, "längere")], [("n", "i4"), ("s", h5py.string_dtype())])
    with h5py.File(tmp_path / "0.nc", "w") as file:
        file["time"] = [1.0, 2.0]
        file["time"].make_scale("time")
        latin = h5py.string_dtype("ascii")
        file.create_dataset("names", data=["å".encode("latin-1"), b"b"], dtype=latin)
        file["records"] = records
        for name in ("names", "records"):
            file[name].dims[0].attach_scale(file["time"])
    virtualize(str(tmp_path / "0.nc"), tmp_path / "repository")
    found = by_reference(tmp_path / "repository")
    assert found["names"].values.tolist() == ["å", "b"]
    assert found["records"].values.tolist() == [(1, "a"), (2, "längere")]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda file: file.create_dataset("v", data=h5py.Empty("f4")), "it has no dataspace"),
        (
            lambda file: file.create_dataset("v", (2,), h5py.vlen_dtype("i4")),
            "only strings are supported",
        ),
        (lambda file: file.create_dataset("v", (2,), h5py.ref_dtype), "only strings are supported"),
        (lambda file: file.create_dataset("v", (2,), np.dtype(("f4", (3,)))), "no Zarr data type"),
    ],
)
def test_types_that_zarr_does_not_have_are_refused_by_name(make, reason, tmp_path):
    with h5py.File(tmp_path / "0.nc", "w") as file:
        file["time"] = [1.0, 2.0]
        make(file)
    with raises(InvalidInputError) as caught:
        virtualize(str(tmp_path / "0.nc"), tmp_path / "repository")
    error = caught.value
    assert "0.nc: array 'v': " in error.message
    assert reason in error.message


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("chunks", [(4, 2), (2, 5), (4, 5)])
def test_chunks_longer_than_their_axes(chunks, compression, tmp_path):
    values = np.arange(4.0).reshape(2, 2)
    with h5py.File(tmp_path / "0.nc", "w") as file:
        file.create_dataset(
            "v", data=values, chunks=chunks, maxshape=(None, None), compression=compression
        )
    virtualize(str(tmp_path / "0.nc"), tmp_path / "repository", concat_dim=())
    np.testing.assert_array_equal(by_reference(tmp_path / "repository")["v"], values)


def test_codecs_of_references_are_not_needed_to_be_known(tmp_path):
    """Copies of two files, one with plain chunks and one with a skipped filter, are one array."""
    write(tmp_path / "0.nc", Made("<f8", "chunked", ("shuffle", "gzip")), 0)
    write(tmp_path / "1.nc", Made("<f8", "chunked", ("shuffle", "gzip"), 1), 1)
    done = virtualize(
        f"{tmp_path}/*.nc", tmp_path / "repository", copying=Copying(which="mismatching")
    )
    assert (done.files_copied, done.references) == (1, 2)
    expected = np.concatenate([read(tmp_path / f"{number}.nc") for number in range(2)])
    np.testing.assert_array_equal(by_reference(tmp_path / "repository")["v"], expected)


def test_scalars_become_inline_chunks(tmp_path):
    with h5py.File(tmp_path / "0.nc", "w") as file:
        file["name"] = "Oslo"
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create(h5py.h5s.SCALAR)
        made = h5py.h5d.create(file.id, b"height", h5py.h5t.IEEE_F64BE, space, plist)
        h5py.Dataset(made)[()] = 2.5
    virtualize(str(tmp_path / "0.nc"), tmp_path / "repository", concat_dim=())
    found = by_reference(tmp_path / "repository")
    assert (found["name"].item(), found["height"].item()) == ("Oslo", 2.5)


@pytest.mark.parametrize("layout", ["contiguous", "chunked", "compact"])
@pytest.mark.parametrize("is_written", [True, False], ids=["written", "without values"])
def test_a_file_that_begins_with_a_user_block(is_written, layout, tmp_path):
    with h5py.File(tmp_path / "0.nc", "w", userblock_size=1024) as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(getattr(h5py.h5d, layout.upper()))
        plist.set_fill_value(np.array(7, "<i4"))
        if layout == "chunked":
            plist.set_chunk((2, 3))
        space = h5py.h5s.create_simple((4, 6))
        made = h5py.Dataset(h5py.h5d.create(file.id, b"v", h5py.h5t.STD_I32LE, space, plist))
        if is_written:
            made[...] = np.arange(24).reshape(4, 6)
        expected = made[...]
    virtualize(str(tmp_path / "0.nc"), tmp_path / "repository", concat_dim=())
    found = by_reference(tmp_path / "repository", mask_and_scale=False)["v"]
    np.testing.assert_array_equal(found, expected)
