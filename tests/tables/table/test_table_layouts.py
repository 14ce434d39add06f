"""Every layout can be described, planned, run and named as an option."""

from icechunk_format.options import declare
from icechunk_format.tables.reading.plan import PLAN_BY_LAYOUT
from icechunk_format.tables.reading.run import RUN_BY_LAYOUT
from icechunk_format.tables.table.table import LAYOUTS


def test_each_table_of_layouts_has_the_same_entries():
    assert set(PLAN_BY_LAYOUT) == set(RUN_BY_LAYOUT) == set(LAYOUTS) == set(declare.LAYOUTS)
