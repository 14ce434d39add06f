"""Repositories in memory whose metadata tables are read, and how Spark reads those."""

import pickle

from icechunk_format.options.metadata_tables import METADATA_TABLES
from icechunk_format.tables import plan_inspection, run_inspection
from icechunk_format.zarr.data_types import parse_data_type
from icechunk_format.zarr.new_nodes import build_array_metadata, build_group_metadata

GROUP = build_group_metadata(attributes=None).to_bytes()


def read(repository, name, **arguments):
    """Read a table as Spark does: a pickled plan, task by task. Returns rows, and tasks."""
    plan = plan_inspection(repository, METADATA_TABLES[name], **arguments)
    context, tasks = pickle.loads(pickle.dumps((plan.context, plan.tasks)))
    rows = []
    for task in tasks:
        for batch in run_inspection(context, task):
            batch.validate(full=True)
            assert batch.schema == context.arrow_schema
            rows += batch.to_pylist()
    return rows, tasks


def rows_of(repository, name, **arguments):
    """Return the rows of a table."""
    return read(repository, name, **arguments)[0]


def array_document(shape, chunks, *, dims=None, attributes=None, dtype="float32", shards=None):
    """Return the ``zarr.json`` of an array of zeros."""
    return build_array_metadata(
        shape=shape,
        data_type=parse_data_type(dtype, node_path="/x"),
        chunk_shape=chunks,
        shard_shape=shards,
        fill_value=0,
        dimension_names=dims,
        attributes=attributes or {},
        node_path="/x",
    ).to_bytes()


def add_array(session, path, shape, chunks, **arguments):
    """Create an array; ``arguments`` are those of ``array_document``."""
    shards = arguments.get("shards")
    session.create_array(
        path,
        array_document(shape, chunks, **arguments),
        shape=shape,
        num_chunks=[-(-n // c) for n, c in zip(shape, shards or chunks, strict=True)],
        dimension_names=arguments.get("dims"),
    )
