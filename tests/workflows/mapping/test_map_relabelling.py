"""A run does not put arrays that it does not write at other labels."""

import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers.blocks import Source, days, mapped, opened
from helpers.raised import raises

from icechunk_format.errors import InvalidInputError
from icechunk_format.repository import Repository
from icechunk_format.workflows.running import in_process

icechunk.set_logs_filter("off")
pytestmark = pytest.mark.filterwarnings("ignore")


def only(ds):
    return ds[["t2m"]]


def moved(dim, by):
    return lambda ds: only(ds).assign_coords({dim: ds[dim] + by})


def extra(ds):
    """Return another array with the dimensions `time` and `y`."""
    return ds[["t2m"]].isel(x=0, drop=True).rename(t2m="extra")


@pytest.fixture
def source(tmp_path):
    return Source(tmp_path / "source", days(0, 6))


@pytest.fixture
def to(source, tmp_path):
    """Return a result with two arrays, of two runs."""
    mapped(source, only, tmp_path / "to")
    mapped(source, extra, tmp_path / "to", mode="overwrite")
    return tmp_path / "to"


def refused(to, coordinate, run):
    before, tip = opened(to), Repository.open(str(to)).resolve()
    with raises(
        InvalidInputError,
        match=f"{coordinate}.*/extra.*another group",
        coordinate=coordinate,
        dimension=coordinate[1:],
        arrays=["/extra"],
    ):
        run()
    assert Repository.open(str(to)).resolve() == tip
    xr.testing.assert_identical(opened(to), before)


@pytest.mark.parametrize("blocks", [None, {"time": 2, "y": 3}])
@pytest.mark.parametrize(("dim", "by"), [("y", 0.5), ("time", np.timedelta64(1, "D"))])
def test_other_labels_below_another_array_are_refused(source, to, dim, by, blocks):
    refused(
        to, f"/{dim}", lambda: mapped(source, moved(dim, by), to, mode="overwrite", blocks=blocks)
    )


def test_the_error_shows_a_label(source, to):
    with pytest.raises(InvalidInputError, match=r"/y would change \(0.0 to 0.5 at position 0\)"):
        mapped(source, moved("y", 0.5), to, mode="overwrite")


def test_one_changed_label_is_enough(source, to):
    source.put("y", 5, 5.25)
    with pytest.raises(InvalidInputError, match=r"5.0 to 5.25 at position 5"):
        mapped(source, only, to, mode="overwrite", blocks={"y": 2})


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(only, id="the same labels"),
        pytest.param(moved("x", 7.0), id="labels of a dimension that the other array lacks"),
        pytest.param(
            lambda ds: xr.merge([moved("y", 0.5)(ds), extra(moved("y", 0.5)(ds))]), id="all arrays"
        ),
        pytest.param(lambda ds: only(ds).assign_coords(y=ds["y"].astype("i4")), id="integers"),
    ],
)
def test_a_run_that_relabels_no_other_array_is_committed(source, to, function):
    before = opened(to)["extra"]
    mapped(source, function, to, mode="overwrite")
    found = opened(to)
    xr.testing.assert_equal(found, xr.merge([function(opened(source.path)), found["extra"]]))
    np.testing.assert_array_equal(found["extra"].values, before.values)


def test_other_units_of_the_same_times_are_no_other_labels(source, to):
    before = opened(to)
    units = {"time": {"units": "hours since 1990-01-01", "dtype": "i4"}}
    mapped(source, only, to, mode="overwrite", encoding=units)
    group = zarr.open_group(
        icechunk.Repository.open(icechunk.local_filesystem_storage(str(to)))
        .readonly_session("main")
        .store,
        mode="r",
    )
    assert group["time"].attrs["units"] == "hours since 1990-01-01"
    xr.testing.assert_equal(opened(to), before)


def test_missing_labels_are_equal_to_missing_labels(tmp_path):
    dataset = days(0, 3).assign_coords(y=[0.0, np.nan, 2.0, 3.0, 4.0, 5.0])
    source, to = Source(tmp_path / "source", dataset), tmp_path / "to"
    mapped(source, only, to)
    mapped(source, extra, to, mode="overwrite")
    mapped(source, only, to, mode="overwrite")
    source.put("y", 1, 1.0)
    refused(to, "/y", lambda: mapped(source, only, to, mode="overwrite"))


def test_labels_of_texts(tmp_path):
    dataset = days(0, 3).assign_coords(y=list("abcdef"))
    source, to = Source(tmp_path / "source", dataset), tmp_path / "to"
    mapped(source, only, to)
    mapped(source, extra, to, mode="overwrite")
    mapped(source, only, to, mode="overwrite")

    def function(ds):
        return only(ds).assign_coords(y=[*ds["y"].values[:-1], "g"])

    refused(to, "/y", lambda: mapped(source, function, to, mode="overwrite"))


def test_shards_of_labels_are_read(source, to):
    sharding = [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [2],
                "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            },
        }
    ]
    given = {"mode": "overwrite", "encoding": {"y": {"codecs": sharding}}}
    mapped(source, only, to, **given)
    source.put("y", 3, 3.5)
    refused(to, "/y", lambda: mapped(source, only, to, **given))


def test_changed_blocks_of_a_followed_source_relabel_no_other_array(source, tmp_path):
    to, blocks = tmp_path / "to", {"time": 3, "y": 2}
    mapped(source, only, to, follow=True, blocks=blocks)
    session = icechunk.Repository.open(icechunk.local_filesystem_storage(str(to))).writable_session(
        "main"
    )
    opened(to)[["t2m"]].isel(x=0, drop=True).rename(t2m="extra").drop_vars(["time", "y"]).to_zarr(
        session.store, zarr_format=3, consolidated=False, mode="a"
    )
    session.commit("extra")
    source.put("t2m", 0, 1.0)
    assert mapped(source, only, to, follow=True, blocks=blocks).computed == 3
    source.put("y", 3, 3.5)
    refused(to, "/y", lambda: mapped(source, only, to, follow=True, blocks=blocks))


def test_labels_that_a_run_deletes_stay_below_other_arrays(source, tmp_path):
    to = tmp_path / "to"
    mapped(source, only, to, follow=True)
    mapped(source, extra, to, mode="overwrite", group="beside")
    repository = Repository.open(str(to))
    session = repository.writable_session()
    session.move("/beside/extra", "/extra")
    session.commit("moved")

    def function(ds):
        return only(ds).drop_vars("y")

    refused(
        to,
        "/y",
        lambda: mapped(source, function, to, follow=True, mode="overwrite", function_version="2"),
    )


def test_an_array_that_another_writer_adds_meanwhile_is_not_relabelled(source, tmp_path):
    to = tmp_path / "to"
    mapped(source, only, to)

    def beside(function, tasks):
        done = list(in_process(function, tasks))
        session = icechunk.Repository.open(
            icechunk.local_filesystem_storage(str(to))
        ).writable_session("main")
        group = zarr.open_group(session.store)
        if "extra" not in group:
            array = group.create_array(
                "extra", shape=(6,), dtype="f8", dimension_names=["y"], fill_value=0.0
            )
            array[:] = np.arange(6.0)
            session.commit("extra")
        return done

    with raises(InvalidInputError, coordinate="/y", arrays=["/extra"]):
        mapped(source, moved("y", 0.5), to, mode="overwrite", run=beside)
    np.testing.assert_array_equal(opened(to)["y"], np.arange(6.0))
