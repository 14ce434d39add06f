"""Chains of codecs that cannot work are refused when they are made, and say what is missing."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from helpers.arrays.codec_chains import LITTLE, chain, named
from helpers.raised import raises

from icechunk_format.errors import FormatError, UnsupportedError
from icechunk_format.zarr.codecs.build import sharding_json
from icechunk_format.zarr.codecs.chain import ChunkCodecs
from icechunk_format.zarr.data_types import parse_data_type
from icechunk_format.zarr.fill_values import default_fill_value


@pytest.mark.parametrize(
    ("codecs", "problem"),
    [
        ([], "1 to 64"),
        ([LITTLE] * 65, "1 to 64"),
        (["zstd"], "exactly one"),
        ([LITTLE, LITTLE], "exactly one"),
        (["zstd", LITTLE], "exactly one"),
        ([LITTLE, named("transpose", order=[0])], "exactly one"),
        ([3], "a name"),
        (["bytes"], "endian"),
        ([named("bytes", endian="middle")], "endian"),
        (["vlen-utf8"], "string"),
        ([named("transpose", order=[1]), LITTLE], "order"),
        ([named("transpose", order="K"), LITTLE], "order"),
        ([named("transpose", order=[True]), LITTLE], "order"),
        (["transpose", LITTLE], "order"),
        ([LITTLE, named("zstd", level=23)], "level"),
        ([LITTLE, named("zstd", level="3")], "level"),
        ([LITTLE, named("zstd", checksum=1)], "checksum"),
        ([LITTLE, named("gzip", level=10)], "level"),
        ([LITTLE, named("blosc", cname="brotli")], "cname"),
        ([LITTLE, named("blosc", cname=["lz4"])], "cname"),
        ([LITTLE, named("blosc", shuffle="mix")], "shuffle"),
        ([LITTLE, named("blosc", shuffle=["shuffle"])], "shuffle"),
        ([LITTLE, named("blosc", typesize=0)], "typesize"),
        ([LITTLE, named("blosc", clevel=10)], "clevel"),
        ([LITTLE, named("numcodecs.blosc", shuffle=3)], "shuffle"),
        ([LITTLE, named("numcodecs.shuffle", elementsize=0)], "elementsize"),
        ([LITTLE, named("numcodecs.crc32c", location="middle")], "location"),
        ([LITTLE, named("numcodecs.crc32", location="middle")], "numcodecs refuses"),
        ([LITTLE, named("numcodecs.lz4", speed=3)], "numcodecs refuses"),
        ([named("scale_offset", scale=0), LITTLE], "scale"),
        ([named("scale_offset", scale=0.5), LITTLE], "scale"),
        ([named("scale_offset", offset=2**40), LITTLE], "offset"),
        ([named("numcodecs.delta", dtype="i4", astype="no"), LITTLE], "astype"),
        ([named("numcodecs.astype", encode_dtype="O"), LITTLE], "encode_dtype"),
        ([named("numcodecs.astype", encode_dtype="T"), LITTLE], "encode_dtype"),
        (["numcodecs.packbits", "bytes"], "bool"),
        ([named("cast_value", data_type="complex64"), LITTLE], "casts"),
        ([named("numcodecs.bitround", keepbits=1, x=1), LITTLE], "numcodecs refuses"),
        ([named("sharding_indexed"), "zstd"], "chunk_shape"),
        ([named("sharding_indexed", chunk_shape=[0])], "chunk_shape"),
        ([named("sharding_indexed", chunk_shape=[1, 1])], "dimensions"),
        ([named("sharding_indexed", chunk_shape=[1], index_location="middle")], "index_location"),
        ([named("sharding_indexed", chunk_shape=[1], codecs=3)], "codecs"),
        ([named("sharding_indexed", chunk_shape=[1], codecs=["zstd"])], "exactly one"),
        ([named("sharding_indexed", chunk_shape=[1], index_codecs=[LITTLE, "zstd"])], "fixed size"),
    ],
)
def test_impossible_chains(codecs: list[Any], problem: str) -> None:
    with pytest.raises(FormatError, match=problem) as caught:
        chain(codecs)
    assert caught.value.facts["object_key"] == "/a"
    assert caught.value.facts["file_type"] == "zarr.json"
    assert caught.value.facts["field"].startswith("codecs")


@pytest.mark.parametrize(
    ("codecs", "data_type"),
    [
        (["bytes"], "string"),
        ([named("scale_offset"), "vlen-utf8"], "string"),
        ([named("scale_offset"), LITTLE], "complex64"),
        (["vlen-bytes"], "string"),
        ([named("cast_value", data_type="int8"), "bytes"], "bool"),
        ([named("cast_value", data_type="uint8"), sharding_json([1], ["bytes"])], "float32"),
    ],
)
def test_chains_that_do_not_suit_the_elements(codecs: list[Any], data_type: str) -> None:
    of = parse_data_type(data_type)
    fill = np.float32(np.nan) if data_type == "float32" else default_fill_value(of)
    with pytest.raises(FormatError):
        ChunkCodecs(codecs, of, fill, ndim=1)


def test_shards_within_shards_without_end() -> None:
    nested: list[Any] = [LITTLE]
    for _ in range(30):
        nested = [sharding_json([1], nested)]
    with pytest.raises(FormatError, match="deep"):
        chain(nested)


@pytest.mark.parametrize(
    ("codec", "package"),
    [
        ("imagecodecs_unheard_of", "imagecodecs"),
        ("pcodec", "numcodecs[pcodec]"),
        ("zfpy", "numcodecs[zfpy]"),
        ("numcodecs.mystery", None),
        ("x" * 10_000, None),
    ],
)
@pytest.mark.parametrize("before", [[], [LITTLE]])
def test_missing_codecs_name_the_package(
    codec: str, package: str | None, before: list[Any]
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        chain([*before, codec])
    assert caught.value.facts["package"] == package
    assert caught.value.facts["node_path"] == "/a"
    assert len(str(caught.value)) < 500
    if package is not None:
        assert f"pip install '{package}'" in str(caught.value)


@pytest.mark.parametrize("name", ["gribberish", "numcodecs.pcodec", "numcodecs.zfpy"])
def test_missing_libraries_name_the_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = name.removeprefix("numcodecs.")
    monkeypatch.setitem(sys.modules, library, None)
    with raises(UnsupportedError, match="pip install", node_path="/a"):
        chain([name], "float64")


@pytest.mark.parametrize("name", ["pickle", "numcodecs.pickle", "json2", "msgpack2", "base64"])
def test_codecs_that_run_or_reshape_what_they_read_are_not_reachable(name: str) -> None:
    for codecs in ([name], [LITTLE, name], [name, LITTLE]):
        with pytest.raises(UnsupportedError):
            chain(codecs)
