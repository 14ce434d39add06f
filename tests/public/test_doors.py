"""Every name of a room's door can be imported, and tasks take theirs without planning."""

import subprocess
import sys
from importlib import import_module
from types import ModuleType

import pytest

PLANNING = ("sqlglot", "icechunk_format.tables.dataset", "icechunk_format.tables.writing.plan")


@pytest.mark.parametrize(
    "door",
    ["groups", "groups.changing", "tables", "tables.cf", "tables.reading", "tables.writing"],
)
def test_names_of_a_door_are_no_modules(door):
    module = import_module(f"icechunk_format.{door}")
    assert module.__all__
    for name in module.__all__:
        assert not isinstance(getattr(module, name), ModuleType), name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        module.nothing  # noqa: B018


@pytest.mark.parametrize("door", ["groups", "groups.changing", "tables.cf", "tables.reading"])
def test_doors_of_tasks_load_no_planning(door):
    code = (
        f"import sys, icechunk_format.{door} as door\n"
        "for name in door.__all__: getattr(door, name)\n"
        f"print([name for name in {PLANNING} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
