"""Any split of a dataset into files, in any order and with broken ones, is put together again."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from helpers.archives.running import by_reference, virtualize
from helpers.examples import by_day
from helpers.raised import raises
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from icechunk_format.errors import InvalidInputError

pytest.importorskip("virtualizarr")
pytestmark = pytest.mark.needs_reference

CHUNK = 2


@st.composite
def cut_datasets(draw):
    """Draw a dataset, where it is cut along one or two dimensions, and which files are broken.

    Files consist of whole chunks, but for the last ones. Members are in the names of files.
    """
    parts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    times = [CHUNK * n for n in parts]
    times[-1] -= draw(st.integers(0, 1))
    levels = draw(st.one_of(st.none(), st.lists(st.integers(1, 2), min_size=1, max_size=3)))
    members = draw(st.integers(0, 2))
    cells = len(times) * len(levels or [1]) * max(1, members)
    order = draw(st.permutations(range(cells)))
    broken = draw(st.sets(st.integers(0, cells - 1), max_size=cells - 1))
    kind = draw(st.sampled_from(["float32", "int16", ">f8"]))
    falls = draw(st.booleans())
    calls, zlib = draw(st.integers(1, 3)), draw(st.booleans())
    return times, levels, members, order, broken, kind, falls, calls, zlib


def whole(times, levels, kind, falls):
    steps = np.arange(sum(times))
    dims, shape = ["time"], [sum(times)]
    coords = {"time": ("time", steps[::-1] if falls else steps, {"units": "days since 2000-01-01"})}
    if levels is not None:
        dims, shape = [*dims, "level"], [*shape, sum(levels)]
        coords["level"] = ("level", np.arange(sum(levels)) * 100.0)
    dims, shape = [*dims, "x"], [*shape, 3]
    coords["x"] = ("x", np.array([1.0, 2.0, 4.0]))
    values = np.arange(np.prod(shape)).reshape(shape).astype(kind)
    first = {"first": (("time",), np.arange(shape[0]) * 0.5)}
    return xr.Dataset({"field": (dims, values), **first}, coords)


def edges(lengths):
    ends = np.cumsum([0, *lengths]).tolist()
    return [slice(a, b) for a, b in pairwise(ends)]


@given(cut_datasets())
@example(([2, 2], [1, 1], 0, [3, 1, 2, 0], {2}, "float32", False, 2, True))
@example(([4, 3], None, 2, [3, 1, 2, 0], set(), "float32", False, 2, False))
@settings(max_examples=by_day(12), deadline=None, suppress_health_check=list(HealthCheck))
def test_a_split_dataset_becomes_whole_again(drawn):
    times, levels, members, order, broken, kind, falls, calls, zlib = drawn
    data = whole(times, levels, kind, falls)
    boxes = [{"time": t} for t in edges(times)]
    if levels is not None:
        boxes = [{**box, "level": k} for box in boxes for k in edges(levels)]
    chunks = {"time": CHUNK, "level": 1, "x": 3}
    dims = ("time",) if levels is None else ("time", "level")
    parts = [data.isel(box) for box in boxes]
    along = {"concat_dim": dims}
    if members:
        parts = [
            part.assign(field=part["field"] + np.array(n * 50, kind)).assign_coords(member=n)
            for n in range(members)
            for part in parts
        ]
        dims = ("member", *dims)
        along = {"concat_dim": dims, "template": "{member:d}_*.nc"}
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, part in enumerate(parts):
            sizes = tuple(chunks[dim] for dim in data["field"].dims)
            how = {
                "field": {"chunksizes": sizes, "zlib": zlib},
                "first": {"chunksizes": (CHUNK,), "zlib": zlib},
            }
            unlimited = [dim for dim in dims if dim != "member"]  # chunks may be longer than a file
            path = Path(folder, f"{int(part.coords.get('member', 0))}_{number}.nc")
            part = part.drop_vars("member", errors="ignore")
            part.to_netcdf(path, engine="h5netcdf", encoding=how, unlimited_dims=unlimited)
            if number in broken:
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
            files.append(str(path))
        listed = [files[number] for number in order]
        repository = Path(folder, "repository")
        if broken:
            with raises(InvalidInputError, refused=len(broken)):
                virtualize(listed, repository, **along)
        refused, taken = set(), 0
        for call in range(calls):
            # Files of later calls come between those of earlier ones.
            given_now = listed if call == calls - 1 else listed[call::calls] or listed
            done = virtualize(given_now, repository, **along, on_mismatch="skip")
            taken += done.files_added
            refused = {
                row["file"].rpartition("/")[2]
                for row in done.report.to_pylist()
                if row["status"] == "refused"
            }
        names = [Path(file).name for file in files]
        late = refused - {names[number] for number in broken}
        kept = [number for number, name in enumerate(names) if name not in refused]
        assert taken == len(kept)
        if late:  # what came late stands behind a file that ends within a chunk
            assert calls > 1
            assert times[-1] % CHUNK
        expected = [parts[number] for number in kept]
        found = by_reference(repository, decode_cf=False)
        times_kept = np.unique(np.concatenate([part["time"].values for part in expected]))
        np.testing.assert_array_equal(np.sort(found["time"].values), times_kept)
        for part in expected:
            at = {dim: part[dim].values for dim in dims}
            np.testing.assert_array_equal(found["field"].sel(at).values, part["field"].values)
            own = found["first"].sel({dim: at[dim] for dim in found["first"].dims})
            np.testing.assert_array_equal(own.values, part["first"].values)
