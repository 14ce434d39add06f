"""Every layout can be described, planned, run and named as an option."""

from icechunk_format.dataset.reading.plan import PLAN_BY_LAYOUT
from icechunk_format.dataset.reading.run import RUN_BY_LAYOUT
from icechunk_format.dataset.table.table import LAYOUTS
from icechunk_format.options import declare


def test_each_table_of_layouts_has_the_same_entries():
    assert set(PLAN_BY_LAYOUT) == set(RUN_BY_LAYOUT) == set(LAYOUTS) == set(declare.LAYOUTS)
