"""Casts give the values of the package that zarr-python computes them with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from icechunk_format.errors import InvalidInputError
from icechunk_format.zarr.codecs.chain import ChunkCodecs
from icechunk_format.zarr.data_types import parse_data_type

# Random bits are cast, signalling NaNs among them.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "float32", "float64")
ROUNDINGS = (
    "nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away",
)  # fmt: skip


@given(
    source=st.sampled_from([*INTEGERS, *FLOATS]),
    target=st.sampled_from([*INTEGERS, *FLOATS]),
    rounding=st.sampled_from(ROUNDINGS),
    out_of_range=st.sampled_from([None, "clamp", "wrap"]),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_casts_are_those_of_the_reference_library(
    source: str, target: str, rounding: str, out_of_range: str | None, data: st.DataObject
) -> None:
    cast_value_rs = pytest.importorskip("cast_value_rs")
    assume(out_of_range != "wrap" or target in INTEGERS)
    values = data.draw(hnp.arrays(source, st.integers(1, 4)))
    configuration = {"data_type": target, "rounding": rounding}
    if out_of_range is not None:
        configuration["out_of_range"] = out_of_range
    chain = [
        {"name": "cast_value", "configuration": configuration},
        {"name": "bytes", "configuration": {"endian": "little"}},
    ]
    codecs = ChunkCodecs(chain, parse_data_type(source), np.dtype(source).type(0), ndim=1)
    try:
        expected = cast_value_rs.cast_array(
            values,
            target_dtype=np.dtype(target),
            rounding_mode=rounding,
            out_of_range_mode=out_of_range,
        )
    except ValueError:
        with pytest.raises(InvalidInputError, match="cast_value"):
            codecs.encode(values)
        return
    ours = np.frombuffer(codecs.encode(values), dtype=target)
    np.testing.assert_array_equal(ours, expected)
    np.testing.assert_array_equal(np.signbit(ours), np.signbit(expected))
