"""The names that users write are pinned: each line of ``public_names.txt`` is one of them.

Pinned are functions, classes and errors of the reference pages of the manual, with parameters,
defaults, fields and methods; options, columns of metadata tables, commands and flags. A line that
goes away breaks programs of users: the page "Compatibility" says for how long it must stay.
``PUBLIC_UPDATE=1 pytest tests/public/test_public_names.py`` writes the list again.
"""

import dataclasses
import difflib
import enum
import importlib
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import typer

import icechunk_format
import icechunk_format.errors
import icechunk_spark
from icechunk_format.command_line.app import app
from icechunk_format.command_line.exit_codes import ExitCode
from icechunk_format.options import OPTIONS
from icechunk_format.options.metadata_tables import METADATA_TABLES
from icechunk_format.tables.selection.where.syntax import FUNCTION_NAMES

FILE = Path(__file__).with_name("public_names.txt")
REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PLAIN = (type(None), bool, int, float, str, tuple)


def documented() -> list[str]:
    """Return the objects that the reference pages describe."""
    texts = [page.read_text("utf-8") for page in sorted(REFERENCE.glob("*.md"))]
    return re.findall(r"^::: (\S+)", "\n".join(texts), re.MULTILINE)


def found_at(path: str) -> Any:
    """Return the object at a dotted path."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return getattr(found_at(module), name)


def shown(default: Any) -> str:
    """Return a default as text that is the same in every process."""
    if isinstance(default, enum.Enum) or not isinstance(default, PLAIN):
        return f"<{type(default).__name__}>"
    return repr(default)


def parameters(name: str, function: Any) -> Iterator[str]:
    """Yield a line for each parameter of a function, in the order of the positional ones."""
    yield f"{name}()"
    position = 0
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        kind = parameter.kind
        stars = {kind.VAR_POSITIONAL: "*", kind.VAR_KEYWORD: "**"}.get(kind, "")
        where = ""
        if kind in (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD):
            position += 1
            where = f", position {position}"
        default = ""
        if parameter.default is not parameter.empty:
            default = f" = {shown(parameter.default)}"
        yield f"{name}({stars}{parameter.name}{default}{where})"


def members(name: str, cls: type) -> Iterator[str]:
    """Yield a line for each field, attribute and method of a class."""
    bases = [base.__name__ for base in cls.__mro__[1:-1] if base.__name__[:1].isalpha()]
    yield f"{name}: class{f' of {bases[0]}' if bases else ''}"
    if issubclass(cls, enum.Enum):
        yield from (f"{name}.{one.name} = {one.value!r}" for one in cls)
        return
    if dataclasses.is_dataclass(cls):
        yield from (f"{name}.{one.name}" for one in dataclasses.fields(cls) if one.name[0] != "_")
    for attribute in dir(cls):
        if attribute.startswith("_") or hasattr(Exception, attribute):
            continue
        value = inspect.getattr_static(cls, attribute)
        if isinstance(value, (classmethod, staticmethod)):
            value = value.__func__
        if inspect.isfunction(value):
            yield from parameters(f"{name}.{attribute}", value)
        else:
            yield f"{name}.{attribute}"


def objects(name: str, found: Any) -> Iterator[str]:
    """Yield the lines of an object and, if it is a module, of what it exports."""
    if isinstance(found, ModuleType):
        names = getattr(found, "__all__", None) or [
            key
            for key, value in vars(found).items()
            if key[0] != "_" and getattr(value, "__module__", None) == found.__name__
        ]
        for one in names:
            yield from objects(f"{name}.{one}", getattr(found, one))
    elif isinstance(found, type):
        yield from members(name, found)
    elif callable(found):
        yield from parameters(name, found)
    else:
        yield name


def commands(name: str, command: Any) -> Iterator[str]:
    """Yield the lines of a command, its flags and arguments, and the commands below it."""
    yield name
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            yield f"{name} <{parameter.name}>"
        else:
            for flag in (*parameter.opts, *parameter.secondary_opts):
                yield f"{name} {flag}"
    for below, one in getattr(command, "commands", {}).items():
        yield from commands(f"{name} {below}", one)


def options() -> Iterator[str]:
    """Yield the lines of options and of metadata tables."""
    for option in OPTIONS:
        default = option.shown_default or "none"
        for call in option.calls:
            yield f"option {option.name} of {call}: {option.shown_type}, default {default}"
        yield from (f"option {alias} is {option.name}" for alias in option.aliases)
    yield from (f"function {name} of conditions" for name in FUNCTION_NAMES)
    for table in METADATA_TABLES.values():
        yield from (f"table {table.name}: {column}" for column in table.names)


def public_names() -> list[str]:
    """Return all lines, sorted."""
    lines = {*options(), *commands("icechunk-spark", typer.main.get_command(app))}
    lines.update(f"exit code {code.value}: {code.name}" for code in ExitCode)
    for module in (icechunk_format, icechunk_spark):
        lines.update(f"{module.__name__}.{name}" for name in module.__all__)
    for path in documented():
        lines.update(objects(path, found_at(path)))
    return sorted(lines)


def test_public_names_are_those_of_the_list():
    found = public_names()
    if os.environ.get("PUBLIC_UPDATE"):
        FILE.write_text("\n".join(found) + "\n", "utf-8")
    listed = FILE.read_text("utf-8").splitlines()
    changed = difflib.unified_diff(listed, found, "listed", "found", lineterm="", n=0)
    assert listed == found, (
        "public names changed; a removed line needs what docs/explanations/compatibility.md says, "
        "then write the list again (PUBLIC_UPDATE=1):\n" + "\n".join(changed)
    )


@pytest.mark.parametrize(
    "line",
    [
        "icechunk_spark.read(path, position 2)",
        "icechunk_format.errors.ConflictError: class of IcechunkError",
        "icechunk_format.groups.changing.result.WriteResult.rows",
        "option missingChunks of read: `fill`, `skip`, default `fill`",
        "table refs: snapshot_id",
        "icechunk-spark log --branch",
        "icechunk-spark tag delete",
        "icechunk_format.maintenance.collect_garbage(older_than, position 2)",
    ],
)
def test_names_of_every_kind_are_in_the_list(line):
    assert line in FILE.read_text("utf-8").splitlines()


def test_every_exported_name_is_documented():
    """Names that the packages export are described on a reference page, hence pinned whole."""
    listed = documented()
    for module in (icechunk_format, icechunk_spark):
        for name in module.__all__:
            found = getattr(module, name)
            homes = {f"{module.__name__}.{name}", f"{found.__module__}.{name}", found.__module__}
            assert homes & {*listed}, f"{module.__name__}.{name} is on no page of docs/reference"


def test_calls_of_options_are_known():
    from icechunk_format.options.declare import Call

    assert {call for option in OPTIONS for call in option.calls} <= {*get_args(Call)}
