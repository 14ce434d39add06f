"""A dataset and a snapshot show their arrays: dimensions, types, chunks, codecs and sizes."""

import pytest
from helpers.grids.weather_repository import write_weather
from helpers.pages import Page

from icechunk_format.tables import open_dataset


@pytest.fixture(scope="module")
def weather():
    return write_weather("memory://show-groups")


def test_a_dataset_as_text(weather):
    repository = weather.repository
    dataset = open_dataset(repository, repository.resolve(tag="v1"), "/")
    assert repr(dataset).splitlines() == [
        f"<Dataset / of {weather.first}>",
        "Dimensions: lat 4, lon 6",
        "Coordinates:",
        "  * lat     (lat)       float64  4 in chunks of 4, 32 B",
        "Data variables:",
        "    height  ()          float32  scalar",
        "    t       (lat, lon)  float32  4 × 6 in chunks of 2 × 3, 96 B",
        "Attributes:",
        "    title: Weather",
    ]


def test_a_dataset_as_html(weather):
    repository = weather.repository
    dataset = open_dataset(repository, repository.resolve(tag="v1"), "/sea")
    page = Page(dataset._repr_html_())
    for text in (
        "ice",
        "(dim_0, x)",
        "float32",
        "2 × 2 (16 B each) in shards of 4 × 8",
        "2 shards, listed by 1 manifest",
        "256 B, not compressed",
        "sharding(bytes, zstd)",
    ):
        assert text in page.texts, text
    assert [tag for tag, _ in page.elements].count("svg") == 1


def test_a_snapshot_as_text_and_html(weather):
    snapshot = weather.repository.snapshot(weather.first)
    lines = repr(snapshot).splitlines()
    assert lines[0].startswith(f"<Snapshot {weather.first}, 20")
    assert [line.split()[0] for line in lines[1:]] == [
        "Write", "/", "/height", "/lat", "/sea", "/sea/ice", "/t",
    ]  # fmt: skip
    page = Page(snapshot._repr_html_())
    for text in ("Write it", "with a second paragraph", "/", "/sea", "ice", "valid_range"):
        assert text in page.texts, text
