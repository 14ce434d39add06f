"""Spark's stale plan of pushed filters, for which this source takes none, still exists."""

from __future__ import annotations

import pytest
from pyspark.sql import datasource
from pyspark.sql.types import LongType, StructField, StructType

pytestmark = pytest.mark.skipif(
    not hasattr(datasource, "EqualTo"), reason="Spark 4.1 brought filter pushdown"
)
CONF = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(spark):
    """Load 40 rows from a source whose reader takes filters and leaves Spark to check them."""

    # Within a function, so that workers get the classes themselves.
    class Reader(datasource.DataSourceReader):
        only = None

        def pushFilters(self, filters):
            for pushed in filters:
                if type(pushed).__name__ == "EqualTo":
                    self.only = pushed.value
                yield pushed

        def partitions(self):
            wanted = range(4) if self.only is None else [self.only]
            return [datasource.InputPartition(value) for value in wanted]

        def read(self, partition):
            return iter([(partition.value, number) for number in range(10)])

    class Source(datasource.DataSource):
        @classmethod
        def name(cls):
            return "pushing"

        def schema(self):
            return StructType([StructField(name, LongType()) for name in "ab"])

        def reader(self, schema):
            return Reader()

    spark.conf.set(CONF, "true")
    spark.dataSource.register(Source)
    yield lambda: spark.read.format("pushing").load()
    spark.conf.unset(CONF)


def test_sparks_stale_plan_is_still_there(pushing):
    """Spark 4.1 to 4.3 keep one plan per load. If this fails, Spark is mended: think again."""
    frame = pushing()
    assert frame.where("a = 1").count() == 10
    assert frame.count() == 10, "right would be 40"
    assert frame.where("a = 1").union(frame.where("a = 2")).count() != 20, "mended"
    assert pushing().where("a = 1").union(pushing().where("a = 2")).count() == 20
