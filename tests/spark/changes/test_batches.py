"""The checks of a stream before it starts."""

import pytest
from helpers.raised import raises
from pyspark.sql.types import StructType

from icechunk_format.errors import InvalidInputError
from icechunk_format.options.write_request import parse_write_options
from icechunk_format.repository import Repository
from icechunk_spark.changes.batches import check_stream, refuse_checkpoint_inside


def check(path, checkpoint):
    refuse_checkpoint_inside(parse_write_options({"path": path}, "writeStream"), checkpoint)


@pytest.mark.parametrize("inside", ["{}/_checkpoint", "{}", "file://{}/a/b", "file:{}/", "{}//c"])
def test_a_checkpoint_inside_of_a_new_repository_is_refused(tmp_path, inside):
    path = str(tmp_path / "r")
    checkpoint = inside.format(path)
    with raises(InvalidInputError, option="checkpointLocation", value=checkpoint):
        check(path, checkpoint)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("beside", ["{}_checkpoint", "{}/../c", "s3://bucket{}/c"])
def test_other_checkpoints_are_taken(tmp_path, beside):
    path = str(tmp_path / "r")
    check(path, beside.format(path))
    check(path, None)


def test_an_existing_repository_may_have_it(tmp_path):
    Repository.create(str(tmp_path / "r"))
    check(str(tmp_path / "r"), str(tmp_path / "r" / "c"))


@pytest.mark.parametrize("options", [{}, {"branch": "dev", "createBranch": "true"}])
@pytest.mark.parametrize("exists", [False, True])
def test_a_stream_without_dimensions_is_refused_for_them_wherever_it_would_begin(
    tmp_path, options, exists
):
    path = str(tmp_path / "r")
    if exists:
        Repository.create(path)
    request = parse_write_options({"path": path, **options}, "writeStream")
    schema = StructType().add("time", "timestamp").add("value", "long")
    with raises(InvalidInputError, match="dimension columns are not known"):
        check_stream(request, schema)
