"""Mutants of a module: its text with one small change each, by operators of mutmut and a few more.

Left alone is what no behaviour depends on: docstrings, annotations, imports, decorators, the words
of errors, and arguments that only state an assumption or a type.
"""

from __future__ import annotations

import random
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import libcst as cst
from libcst import matchers as m
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import (
    mutation_operators,
    operator_arg_removal,
    operator_assignment,
    operator_match,
    operator_string,
)

ROOT = Path(__file__).resolve().parents[2]
FORMAT = ROOT / "format" / "icechunk_format"
# Arguments that state an assumption (`zip(strict=True)`) or what only saves time or memory.
ASSUMPTIONS = {"strict", "copy", "maxsize", "stacklevel", "slots", "zero_copy_only"}
# Calls whose arguments are words for people, or types.
WORDS = {"cast", "TypeVar", "warn", "shown", "counted", "quoted", "plural"}
CO_OPTIMIZED = 1  # of the code of functions, unlike that of modules and classes


@dataclass(frozen=True)
class Mutant:
    """A changed module: the lines of the change, the line before and after, and the code."""

    path: Path
    lines: range
    before: str
    after: str
    code: types.CodeType

    def __str__(self) -> str:
        """Return the place and the change."""
        return f"{self.path}:{self.lines.start}: {self.before}  ->  {self.after}"


def forced_test(node: cst.If | cst.CompIf) -> Iterator[cst.BaseExpression]:
    """Yield a condition that is never true and one that always is."""
    inner = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield cst.BooleanOperation(inner, cst.And(), cst.Name("False"))
    yield cst.BooleanOperation(inner, cst.Or(), cst.Name("True"))


def dropped_call(node: cst.Expr) -> Iterator[cst.CSTNode]:
    """Leave out a call whose result is not used."""
    if isinstance(node.value, cst.Call):
        yield cst.Pass()


def no_result(node: cst.Return) -> Iterator[cst.CSTNode]:
    """Return None instead of a value."""
    if node.value is not None and not m.matches(node.value, m.Name("None")):
        yield node.with_changes(value=cst.Name("None"))


def another_word(node: cst.SimpleString) -> Iterator[cst.CSTNode]:
    """Change a string that is no sentence; once, since capitals of it say nothing more."""
    if " " not in node.value:
        yield from list(operator_string(node))[:1]


def left_out(node: cst.Call) -> Iterator[cst.CSTNode]:
    """Leave out an argument that has a default, as its keyword says."""
    for at, arg in enumerate(node.args):
        if arg.keyword and arg.keyword.value not in ASSUMPTIONS:
            yield node.with_changes(args=[*node.args[:at], *node.args[at + 1 :]])


# Those of mutmut without what fails at once, wherever it is: None for a required argument or for a
# variable, and a case less of a match, which is another exception or no result.
_INSTEAD = (operator_string, operator_match, operator_arg_removal, operator_assignment)
OPERATORS = [
    *((kind, make) for kind, make in mutation_operators if make not in _INSTEAD),
    (cst.SimpleString, another_word),
    (cst.Call, left_out),
    (cst.If, forced_test),
    (cst.CompIf, forced_test),
    (cst.Expr, dropped_call),
    (cst.Return, no_result),
]


class _Places(cst.CSTVisitor):
    """Collects the changes of a module, each with the lines that it concerns."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        self.found: list[tuple[CodeRange, cst.CSTNode]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if _is_left_alone(node):
            return False
        for kind, make in OPERATORS:
            if isinstance(node, kind):
                where = node.test if make is forced_test else node
                place = self.get_metadata(PositionProvider, where)
                self.found += [(place, new) for new in make(node)]
        if isinstance(node, cst.Arg) and node.keyword and node.keyword.value in ASSUMPTIONS:
            return False
        return super().on_visit(node)


def _name(call: cst.CSTNode) -> str:
    match call:
        case cst.Call(func=cst.Name(value=name) | cst.Attribute(attr=cst.Name(value=name))):
            return name
    return ""


def _is_left_alone(node: cst.CSTNode) -> bool:
    """Return True if neither a node nor what it contains is changed."""
    match node:
        case cst.Annotation() | cst.Decorator() | cst.Import() | cst.ImportFrom() | cst.Raise():
            return True
        case cst.Call() if _name(node).endswith(("Error", "Warning")) or _name(node) in WORDS:
            return True
        case cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString()):
            return True
        case cst.If(test=cst.Name(value="TYPE_CHECKING")):
            return True
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))]):
            return name in {"__all__", "__slots__"}
        case cst.FunctionDef():
            return any(m.matches(d.decorator, m.Name("overload")) for d in node.decorators)
    return False


class Module:
    """A module and the places at which it can be changed."""

    def __init__(self, path: Path) -> None:
        self.path, self.text = path, path.read_text()
        self.name = ".".join(path.relative_to(FORMAT.parent).with_suffix("").parts)
        self.code = compile(self.text, str(path), "exec")
        places = _Places()
        MetadataWrapper(cst.parse_module(self.text), unsafe_skip_copy=True).visit(places)
        self._places = places.found
        self._starts = list(accumulate(map(len, self.text.splitlines(True)), initial=0))

    def mutants(self, most: int, seed: str) -> list[Mutant]:
        """Return the mutants that compile: all, or a sample by a seed.

        A tenth of a sample may change what is executed at import, since these take longest to try.
        """
        places = list(range(len(self._places)))
        random.Random(seed).shuffle(places)
        found: list[Mutant] = []
        seen, at_import = {self.text}, 0
        for place in places:
            if most and len(found) == most:
                break
            where, new = self._places[place]
            first, last = where.start, where.end
            start = self._starts[first.line - 1] + first.column
            stop = self._starts[last.line - 1] + last.column
            text = self.text[:start] + cst.Module([]).code_for_node(new) + self.text[stop:]
            if text in seen:
                continue
            seen.add(text)
            try:
                code = compile(text, str(self.path), "exec")
            except SyntaxError:
                continue
            if most and changed_functions(self.code, code) is None:
                at_import += 1
                if at_import > max(1, most // 10):
                    continue
            if code != self.code:
                was, now = _difference(self.text.splitlines(), text.splitlines())
                lines = range(first.line, last.line + 1)
                found.append(Mutant(self.path, lines, was, now, code))
        return found

    @property
    def count(self) -> int:
        """The number of places."""
        return len(self._places)


def _difference(before: list[str], after: list[str]) -> tuple[str, str]:
    """Return the lines that differ, as one line each."""
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    texts = (
        " ".join(line.strip() for line in text[start : len(text) - end]) for text in (before, after)
    )
    old, new = texts
    return old, new


def changed_functions(
    old: types.CodeType, new: types.CodeType
) -> Iterable[tuple[types.CodeType, types.CodeType]] | None:
    """Return the functions whose code differs, or None if a module's or class's own code does."""
    if old == new:
        return []
    inner = [[c for c in code.co_consts if isinstance(c, types.CodeType)] for code in (old, new)]
    pairs = list(zip(*inner, strict=False))
    if not old.co_flags & CO_OPTIMIZED and (
        old.co_code != new.co_code
        or old.co_names != new.co_names
        or len(inner[0]) != len(inner[1])
        or _constants(old) != _constants(new)
    ):
        return None
    found = [(old, new)] if old.co_flags & CO_OPTIMIZED else []
    for pair in pairs:
        below = changed_functions(*pair)
        if below is None:
            return None
        found += below
    return found


def _constants(code: types.CodeType) -> list[object]:
    return [repr(c) for c in code.co_consts if not isinstance(c, types.CodeType)]
