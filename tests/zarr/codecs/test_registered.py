"""Codecs of other packages are found and used, and what they give is checked like other bytes."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
from helpers.arrays.codec_chains import LITTLE, chain, named
from helpers.raised import raises
from numcodecs import registry
from numcodecs.abc import Codec

from icechunk_format.errors import FormatError, InvalidInputError, UnsupportedError
from icechunk_format.zarr.codecs import registered as registered_codecs


class Negate(Codec):
    """A codec of another package, usable in every place of a chain."""

    codec_id = "negate"

    def __init__(self, strength: int = 1) -> None:
        if strength != 1:
            raise ValueError("too strong")

    def encode(self, buf: Any) -> Any:
        return -np.asarray(buf) if isinstance(buf, np.ndarray) else bytes(255 - b for b in buf)

    def decode(self, buf: Any, out: Any = None) -> Any:
        return self.encode(buf)


class NegateElements(Negate):
    codec_id = "negate-elements"

    def encode(self, buf: Any) -> Any:
        return (-buf).tobytes()

    def decode(self, buf: Any, out: Any = None) -> Any:
        return -np.frombuffer(buf, dtype="<i4")


@pytest.fixture
def negate_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.codec_registry, "negate", Negate)
    monkeypatch.setitem(registry.codec_registry, "negate-elements", NegateElements)


@pytest.mark.usefixtures("negate_is_registered")
@pytest.mark.parametrize(
    "codecs",
    [["negate", LITTLE], [LITTLE, "negate"], ["negate-elements"], ["negate-elements", "zstd"]],
)
def test_codecs_that_other_packages_register(codecs: list[Any]) -> None:
    made = chain(codecs)
    array = np.array([1, -5, 7], dtype="i4")
    assert made.decode(made.encode(array), (3,)).tolist() == [1, -5, 7]
    with pytest.raises(FormatError):
        made.decode(made.encode(array), (2,))
    with raises(FormatError, match="refuses", field="codecs[0]"):
        chain([named("negate", strength=2)])


def test_packages_that_are_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        def __init__(self, value: Any) -> None:
            self.value = value

        def load(self) -> Any:
            if self.value is None:
                raise ImportError("half installed")
            return self.value

    monkeypatch.setitem(registry.entries, "negate-2", Entry(Negate))
    monkeypatch.setitem(registry.entries, "broken", Entry(None))
    monkeypatch.setitem(registry.entries, "foreign", Entry(object))
    assert chain([LITTLE, "negate-2"]).encode(np.array([-1], "i4")) == b"\0\0\0\0"
    for name in ("broken", "foreign"):
        with pytest.raises(UnsupportedError):
            chain([LITTLE, name])
    # Packages may announce themselves to zarr-python instead.
    announced = [Entry(Negate)]
    monkeypatch.setattr(registered_codecs, "entry_points", lambda **_: announced)
    assert chain([LITTLE, "negate-3"]).encode(np.array([-1], "i4")) == b"\0\0\0\0"


class Panic(BaseException):
    """Stands for what a Rust library raises when it gives up."""


Panic.__name__ = "PanicException"


class GribLibrary(types.SimpleNamespace):
    """Stands for gribberish: the last section of a message is float64 elements."""

    @staticmethod
    def parse_grib_array(message: bytes, offset: int, *options: bool) -> np.ndarray:
        if message.endswith(b"panic"):
            raise Panic("index out of bounds")
        if message.endswith(b"stop"):
            raise KeyboardInterrupt
        values = np.frombuffer(message[87:], "<f8")
        return values[::-1] if any(options) else values

    @staticmethod
    def parse_grib_message_metadata(message: bytes, offset: int) -> Any:
        return types.SimpleNamespace(latlng=lambda *options: (np.ones(2), np.zeros(2)))


def grib(data: bytes, *, points: int, rows: int = 1, edition: int = 2, template: int = 0) -> bytes:
    section_3 = b"\3\0" + points.to_bytes(4, "big") + b"\0\0" + template.to_bytes(2, "big")
    section_3 += bytes(16) + (points // rows).to_bytes(4, "big") + rows.to_bytes(4, "big")
    parts = [b"\1" + bytes(21), section_3 + bytes(7)]
    message = b"".join((len(part) + 4).to_bytes(4, "big") + part for part in parts)
    return b"GRIB\0\0\0" + bytes([edition]) + bytes(8) + message + data


def test_grib_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gribberish", GribLibrary())
    values = np.array([1.0, 2.0]).tobytes()
    message = grib(values, points=2)
    assert len(message) == 87 + 16
    made = chain([named("gribberish", var="TMP")], "float32", ndim=2)
    assert made.decode(message, (1, 2)).tolist() == [[1, 2]]
    flipped = chain([named("gribberish", var="TMP", north_up=True)], "float64")
    assert flipped.decode(message, (2,)).tolist() == [2, 1]
    assert chain([named("gribberish", var="latitude")], "float64").decode(message, (2,)).all()
    assert not chain([named("gribberish", var="longitude")], "float64").decode(message, (2,)).any()
    scaled = chain([named("scale_offset", offset=-1.0), "gribberish"], "float64")
    assert scaled.decode(message, (2,)).tolist() == [0, 1]
    assert scaled.encoded_bound((2,)) is None
    for bad, shape in (
        (message, (1, 3)),
        (message, (1, 1)),
        (b"BUFR" + message[4:], (1, 2)),
        (message[:15], (1, 2)),
        (message[:60], (1, 2)),
        (message[:37], (1, 2)),
        (message[:16] + bytes(30), (1, 2)),
        (grib(values, points=2, edition=1), (1, 2)),
        (grib(values, points=3, rows=2), (1, 3)),
        (grib(values, points=3), (1, 3)),
        (grib(b"panic", points=2), (1, 2)),
    ):
        with raises(FormatError, codec="gribberish"):
            made.decode(bad, shape)
    coordinate = chain([named("gribberish", var="latitude")], "float64")
    with pytest.raises(FormatError, match="the message has 2147483648 points"):
        coordinate.decode(grib(b"", points=2**31), (2,))
    with pytest.raises(KeyboardInterrupt):
        made.decode(grib(b"stop", points=2), (1, 2))
    with raises(InvalidInputError, node_path="/a", codec="gribberish"):
        made.encode(np.zeros((1, 2), "f4"))
    with raises(FormatError, match="var", field="codecs[0]"):
        chain([named("gribberish", var=3)], "float64")


def test_pcodec() -> None:
    pytest.importorskip("pcodec")
    made = chain(["numcodecs.pcodec"], "float64", ndim=2)
    array = np.linspace(0, 1, 600).reshape(20, 30)
    data = made.encode(array)
    np.testing.assert_array_equal(made.decode(data, (20, 30)), array)
    for shape in ((20, 31), (20, 29)):
        with pytest.raises(FormatError):
            made.decode(data, shape)
    with pytest.raises(FormatError):
        made.decode(data[:-3], (20, 30))
    with pytest.raises(FormatError):
        chain(["numcodecs.pcodec"], "string")


class Objects(NegateElements):
    def decode(self, buf: Any, out: Any = None) -> Any:
        return np.array([None, None], object)


class Wide(NegateElements):
    def decode(self, buf: Any, out: Any = None) -> Any:
        return -np.frombuffer(buf, dtype=">i8")

    def encode(self, buf: Any) -> Any:
        return (-buf).astype(">i8").tobytes()


class WideArrays(Negate):
    def encode(self, buf: Any) -> Any:
        return np.asarray(buf).astype("i8")


def test_what_other_libraries_give_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zfpy", types.SimpleNamespace())
    array = np.array([1, 2], "i4")
    for codec_class in (NegateElements, Wide):
        monkeypatch.setitem(registry.codec_registry, "zfpy", codec_class)
        made = chain(["numcodecs.zfpy"])
        decoded = made.decode(made.encode(array), (2,))
        assert decoded.dtype == np.dtype("i4")
        assert decoded.tolist() == [1, 2]
    monkeypatch.setitem(registry.codec_registry, "zfpy", Objects)
    with raises(FormatError, codec="numcodecs.zfpy"):
        chain(["numcodecs.zfpy"]).decode(b"", (2,))
    with raises(FormatError, match="does not store", field="codecs[0]"):
        chain(["numcodecs.zfpy"], "string")
    monkeypatch.setitem(registry.codec_registry, "wide-arrays", WideArrays)
    with raises(InvalidInputError, node_path="/a", codec="wide-arrays"):
        chain(["wide-arrays", LITTLE]).encode(array)
    monkeypatch.setitem(registry.codec_registry, "objects", Objects)
    with raises(FormatError, match="returns 2 elements of type object", codec="objects"):
        chain(["objects", LITTLE]).decode(array.tobytes(), (2,))


def test_zfp() -> None:
    pytest.importorskip("zfpy")
    made = chain([named("numcodecs.zfpy", mode=4, tolerance=0.01)], "float64", ndim=2)
    array = np.linspace(0, 1, 64).reshape(8, 8)
    np.testing.assert_allclose(made.decode(made.encode(array), (8, 8)), array, atol=0.01)
