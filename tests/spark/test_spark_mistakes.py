"""The last line of Spark's traceback tells newcomers what to do about their mistakes."""

from __future__ import annotations

import pytest
from helpers.builder import reference_repository
from helpers.spark.repositories import build_two_dimension_sets, build_two_groups
from helpers.spark.session import source_session
from pyspark.errors import PySparkException, StreamingQueryException

pytestmark = pytest.mark.needs_reference


by_both = pytest.mark.parametrize("reading_session", ["source", "function"], indirect=True)
"""Where Spark's planning process may fail: options, opening, planning, schemas of users."""


@pytest.fixture
def reading_session(request, spark):
    """Give a session where a function reads, or where Spark plans reading by the data source."""
    return source_session(spark) if getattr(request, "param", None) == "source" else spark


@pytest.fixture
def fails(reading_session, weather, last_line):
    """Load with options, expect a failure, return its last line."""

    def of(path=None, **options):
        reader = reading_session.read.format("icechunk").options(**options)
        return last_line(lambda: reader.load(path or weather.path).count())

    return of


@by_both
def test_no_path(reading_session, last_line):
    assert "load(path)" in last_line(lambda: reading_session.read.format("icechunk").load())


@by_both
def test_a_path_that_is_not_there(fails, tmp_path):
    assert "nowhere" in fails(str(tmp_path / "nowhere"))


def test_a_file_instead_of_a_folder(fails, tmp_path):
    file = tmp_path / "data.nc"
    file.write_bytes(b"CDF\x01")
    assert "data.nc" in fails(str(file))


def test_a_zarr_folder_that_is_no_repository(fails, tmp_path):
    import zarr

    zarr.create_group(str(tmp_path / "plain.zarr")).create_array("a", shape=(3,), dtype="i4")
    text = fails(str(tmp_path / "plain.zarr"))
    assert "plain.zarr" in text
    assert "Zarr" in text


def test_an_empty_repository(fails, tmp_path):
    reference_repository(tmp_path / "empty")
    assert "empty" in fails(str(tmp_path / "empty"))


@by_both
def test_two_paths(reading_session, weather, last_line):
    paths = [weather.path, weather.path + "2"]
    assert "union" in last_line(lambda: reading_session.read.format("icechunk").load(paths))


@by_both
def test_a_tag_that_is_not_there(fails):
    text = fails(tag="v2")
    assert "no tag 'v2'" in text
    assert "v1" in text


def test_a_branch_that_is_not_there(fails):
    text = fails(branch="master")
    assert "no branch 'master'" in text
    assert "main" in text
    assert "dev" in text


def test_a_snapshot_that_is_not_there(fails):
    assert "snapshot" in fails(snapshot="00000000000000000000")
    assert "snapshot" in fails(snapshot="latest").lower()


def test_an_instant_before_the_first_commit(fails):
    assert "2001" in fails(asOf="2001-01-01")


def test_a_group_that_is_not_there(fails):
    text = fails(group="oceans")
    assert "oceans" in text
    assert "'ocean'" in text or "/ocean" in text


def test_several_groups_and_none_named(fails, tmp_path):
    text = fails(build_two_groups(tmp_path / "groups"))
    assert "north" in text
    assert "south" in text


@by_both
def test_a_variable_that_is_not_there(fails):
    text = fails(variables="t2n")
    assert "t2n" in text
    assert "t2m" in text


def test_variables_whose_dimensions_do_not_nest(reading_session, last_line, tmp_path):
    path = build_two_dimension_sets(tmp_path / "sets")
    text = last_line(lambda: reading_session.read.format("icechunk").load(path))
    assert "variables" in text


def test_an_option_that_is_not_there(fails):
    assert "did you mean 'variables'" in fails(varaibles="t2m")


def test_a_value_that_is_not_allowed(fails):
    assert "true or false" in fails(decodeCf="on")


@by_both
def test_a_storage_setting_that_is_not_there(fails):
    text = fails(**{"storage.endpont_url": "http://localhost", "storage.secret": "hunter2"})
    assert "endpont_url" in text
    assert "hunter2" not in text


@by_both
def test_a_condition_that_does_not_parse(fails):
    assert "where" in fails(where="latitude >")


def test_a_condition_on_a_column_that_is_not_there(fails):
    text = fails(where="lattitude > 3")
    assert "lattitude" in text
    assert "latitude" in text


@by_both
def test_a_label_that_is_not_there(fails):
    text = fails(sel="latitude=44.9")
    assert "nearest" in text


def test_a_dimension_that_is_not_there(fails):
    assert "lat" in fails(isel="lat=0")


@by_both
def test_a_schema_of_another_type(reading_session, weather, last_line):
    reader = reading_session.read.format("icechunk").schema("t2m int")
    text = last_line(lambda: reader.load(weather.path).count())
    assert "'t2m' is float" in text
    assert "float or double" in text


@by_both
def test_a_schema_with_another_column(reading_session, weather, last_line):
    reader = reading_session.read.format("icechunk").schema("t2 float")
    assert "did you mean 't2m'" in last_line(lambda: reader.load(weather.path).count())


@by_both
def test_a_metadata_table(fails, weather):
    assert "did you mean '#chunks'" in fails(weather.path + "#chunk")
    assert "did you mean 'snapshots'" in fails(table="snapshot")
    assert "this table takes path" in fails(weather.path + "#snapshots", tag="v1")
    assert "no branch or tag 'v9'" in fails(weather.path + "#changes", to="v9")


def test_a_catalog_table(spark, weather, last_line):
    sql = f"CREATE TABLE weather USING icechunk OPTIONS (path '{weather.path}')"
    assert "CREATE TEMPORARY VIEW" in last_line(lambda: spark.sql(sql))
    sql = "CREATE TABLE made USING icechunk OPTIONS (path '/tmp/made') AS SELECT 1L AS x"
    assert "write.format('icechunk').save(path)" in last_line(lambda: spark.sql(sql))
    assert not spark.catalog.tableExists("made")


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("versionAsOf", "option 'versionAsOf' must be the id of a snapshot"),
        ("startingVersion", "option 'startingVersion' does not exist: option 'changesSince'"),
        ("readChangeFeed", "option 'readChangeFeed' does not exist: option 'changesSince'"),
    ],
)
def test_options_of_other_formats_in_sql(spark, weather, last_line, option, hint):
    sql = f"CREATE TEMPORARY VIEW w USING icechunk OPTIONS (path '{weather.path}', {option} '1')"
    assert hint in last_line(lambda: spark.sql(sql))


@pytest.mark.each_spark
def test_spark_shows_no_frames_of_the_package_under_an_error(spark, weather):
    view = "CREATE TEMPORARY VIEW w USING icechunk OPTIONS (path '%s', %s)"
    for option in ("tag 'v9'", "layout 'cell'", "layot 'cells'"):
        with pytest.raises(PySparkException) as caught:
            spark.sql(view % (weather.path, option))
        assert "/icechunk_format/" not in str(caught.value)


def test_streaming(spark, weather):
    for options, says in (
        ({"path": weather.path + "#snapshots"}, "spark.read reads metadata tables"),
        ({"path": weather.path, "changesSince": "main"}, "option 'startingFrom'"),
    ):
        frame = spark.readStream.format("icechunk").options(**options).load()
        query = frame.writeStream.format("noop").start()
        with pytest.raises(StreamingQueryException, match=says):
            query.processAllAvailable()
