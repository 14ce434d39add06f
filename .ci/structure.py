"""Count the code (lines, files in each folder, the longest modules) and check docstrings and tests.

Fails above the ceilings of lines and of tokens per line, for a long module whose head gives no
reason, a docstring that begins with a word such as What or Tell, a function of a bool without "True
if", a name in backticks that does not exist, an import that bypasses the facade or the doors of a
room, an import by a string, which import-linter does not see, and a test file that is not at the
path of a module or room.

A line counts when it holds code: blank lines, comments and docstrings do not. Import circles are
checked by import-linter, whose contracts are in ``pyproject.toml``. Run by ``make check``.
"""

from __future__ import annotations

import ast
import builtins
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (ROOT / "format" / "icechunk_format", ROOT / "icechunk_spark")
# Lines of each room: what was reached, with some room for fixes. Lower them when a room shrinks,
# and do not raise them to let a change in that could be smaller itself.
MOST_LINES = {
    "icechunk_format": 500,
    "zarr": 3_500,
    "command_line": 3_950,
    "tables": 17_500,
    "groups": 3_400,
    "display": 1_300,
    "drafts": 1_400,
    "grid": 1_500,
    "maintenance": 5_800,
    "options": 2_600,
    "repository": 10_900,
    "encoding": 9_600,
    "storage": 5_200,
    "workflows": 24_100,
    "icechunk_spark": 12_600,
}
MOST_FILES_IN_A_FOLDER = 12
MOST_LINES_IN_A_MODULE = 700
MOST_LINES_WITHOUT_A_REASON = 400
MOST_FILES_WITH_ONE_FIRST_WORD = 2
# Folders of tests that each cross many rooms; all others have the folders of the packages.
CROSS_CUTTING_TESTS = {
    *("benchmarks", "cloud", "cluster", "conformance", "fuzz"),
    *("golden", "helpers", "manual", "peers", "public", "s3", "torture"),
}
USERS_OF_ROOMS = ("tests", "benchmarks", "examples")
# Rooms whose modules only their doors may import: these packages, which export names. The modules
# of a room import each other directly.
DOORS = {
    "icechunk_format.repository": (
        *("", ".changes", ".chunks", ".commit", ".files", ".history", ".session", ".state"),
        ".lifecycle.difference",
    ),
    "icechunk_format.groups": ("", ".changing"),
    "icechunk_format.tables": ("", ".cf", ".reading", ".writing"),
}
BEFORE_DOORS = ("command_line", "maintenance", "workflows")
# Maintenance is about the files and states of a repository, so it takes them from their modules.
PAST_REPOSITORY = ("maintenance",)
FRAGMENT_KINDS = {"added", "changed", "deprecated", "fixed", "removed"}

# Modules that import lazily by a computed string: names of a facade, what shows a result, packages
# that are optional or belong to other projects, and classes of Spark that get methods.
IMPORTERS = {"import_module", "__import__", "pkgutil", "runpy"}
OWN_MODULES = (".", "icechunk", "pyspark_icechunk")
IMPORTS_BY_STRING = {
    *("format/icechunk_format/names.py", "format/icechunk_format/display/__init__.py"),
    "format/icechunk_format/zarr/codecs/registered.py",
    "format/icechunk_format/command_line/entry.py",
    "format/icechunk_format/command_line/views/documents.py",
    "format/icechunk_format/workflows/horizontal/reference_systems.py",
    "format/icechunk_format/workflows/virtualizing/scanning/parse.py",
    *("icechunk_spark/registration.py", "icechunk_spark/daemon.py"),
}

_REASON = re.compile(r"^Long because \w", re.MULTILINE)
_BAD_START = re.compile(r"(What|Which|Where|Whose|Who|Whether|Tells?|Says?|Answers?|Knows?|See)\b")
_IN_BACKTICKS = re.compile(r"`{1,2}([A-Za-z_][\w.]*)(?:\(\))?`{1,2}")
# Names of the specification, of Spark, of s3fs and of the environment.
_NAMES_ELSEWHERE = {
    *("fbs", "ArrayNodeData", "ChunkRef", "ManifestFileInfo", "ManifestRef", "UpdateType"),
    *("DataFrameReader", "DataFrameWriter", "DataFrameWriterV2", "DataStreamWriter"),
    *("SparkContext", "pushFilters", "explain", "from_json", "get_json_object", "call_s3"),
    *("NO_COLOR", "py", "pyspark_icechunk", "virtual_storage_region", "key0", "key1"),
}

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield docstrings and other bare strings."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as found):
                yield found


def code_lines(text: str) -> dict[int, list[str]]:
    """Return the lines of a module that hold code, with their tokens."""
    lines: dict[int, list[str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            for line in range(token.start[0], token.end[0] + 1):
                lines.setdefault(line, []).append(token.string)
    for found in docstrings(ast.parse(text)):
        for line in range(found.lineno, (found.end_lineno or found.lineno) + 1):
            lines.pop(line, None)
    return lines


def bad_docstrings(text: str, words: set[str]) -> Iterator[str]:
    """Yield what is wrong with the docstrings of a module, given the words of all code."""
    tree = ast.parse(text)
    for found in docstrings(tree):
        if start := _BAD_START.match(str(found.value)):
            yield f"{found.lineno}: a docstring begins with {start[1]!r}; begin with a noun or verb"
        for name in _IN_BACKTICKS.findall(str(found.value)):
            if unknown := {part for part in name.split(".") if part} - words:
                yield f"{found.lineno}: a docstring names {name!r}, but {unknown} does not exist"
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(returns=ast.Name(id="bool")):
                about = (ast.get_docstring(node) or "True if").partition("\n")[0]
                if "True if" not in about:
                    yield f"{node.lineno}: begin with 'Return True if', found {about!r}"


def misplaced_tests(modules: list[Path]) -> Iterator[Path]:
    """Yield the test files that are not named after a module or room at their own path."""
    named = {ROOT / "tests" / "spark", ROOT / "tests"}
    for module in modules:
        package = PACKAGES[1] if PACKAGES[1] in module.parents else PACKAGES[0]
        tests = ROOT / "tests" / ("spark" if package == PACKAGES[1] else "")
        path = tests / module.relative_to(package).with_suffix("")
        named.add(path.parent if path.name == "__init__" else path)
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        words = test.stem.split("_")[1:]
        names = ["_".join(words[: count + 1]) for count in range(len(words))]
        of_room = test.parent in named and test.parent.name in names
        if not of_room and named.isdisjoint(test.parent / name for name in names):
            yield test.relative_to(ROOT)


def facades(files: list[Path]) -> dict[str, set[str]]:
    """Return the names that each room of `icechunk_format` exports, by its dotted name."""
    found = {}
    for file in files:
        if file.name == "__init__.py" and "loaded_on_use" in file.read_text():
            room = ".".join(file.parent.relative_to(PACKAGES[0].parent).parts)
            for node in ast.parse(file.read_text()).body:
                match node:
                    case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                        found[room] = set(ast.literal_eval(value))
    return found


def bypasses(file: Path, rooms: dict[str, set[str]]) -> Iterator[str]:
    """Yield the imports of a file that take a name from a module of a room that exports it."""
    own = ".".join(file.relative_to(ROOT).parts)
    doors = {f"{home}{door}": home for home, names in DOORS.items() for door in names}
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        for room, names in rooms.items():
            home = doors.get(room, room)
            of_room = home.partition(".")[2] and f"{home.partition('.')[2]}." in own
            if of_room or node.module in doors or not node.module.startswith(f"{home}."):
                continue
            for name in sorted(names.intersection(alias.name for alias in node.names)):
                yield f"{node.lineno}: import {name} from {room}, which exports it"


def past_doors(file: Path) -> Iterator[str]:
    """Yield the imports of a file that go past the doors of a room."""
    open_to_all = {"icechunk_format.repository"} if room_of(file) in PAST_REPOSITORY else set()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.ImportFrom(module=str() as module):
                # A package of a room, too, if a module is taken from it.
                modules = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            case ast.Import(names=names):
                modules = [alias.name for alias in names]
            case _:
                continue
        for room, doors in DOORS.items():
            if room in open_to_all:
                continue
            inner = {
                module for module in modules if module.startswith(f"{room}.") and is_module(module)
            } - {f"{room}{door}" for door in doors}
            for module in sorted(inner):
                names = ", ".join(f"{room}{door}" for door in doors)
                yield f"{node.lineno}: {module} is behind a door; import from one of {names}"


def is_module(name: str) -> bool:
    """Return True if a dotted name is a module or package of `icechunk_format`."""
    path = PACKAGES[0].parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def imports_by_string(text: str) -> Iterator[int]:
    """Yield the lines that import a module by a string, other than the name of a foreign one."""
    tree, foreign = ast.parse(text), set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=func, args=[ast.Constant(value=str() as name), *_]) if (
                not name.startswith(OWN_MODULES)
            ):
                foreign.add(func)
    for node in ast.walk(tree):
        match node:
            # Also where the function is passed on, or gets another name.
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in IMPORTERS:
                if node not in foreign:
                    yield node.lineno
            case ast.ImportFrom(names=names):
                if any(alias.name in IMPORTERS and alias.asname for alias in names):
                    yield node.lineno


def room_of(file: Path) -> str:
    """Return the room of a module: a folder of the format, or a whole package."""
    package = PACKAGES[1] if PACKAGES[1] in file.parents else PACKAGES[0]
    parts = file.relative_to(package).parts
    return parts[0] if package == PACKAGES[0] and len(parts) > 1 else package.name


def main() -> int:
    """Print the figures; return 1 when one is above its ceiling."""
    files = sorted(file for package in PACKAGES for file in package.rglob("*.py"))
    tokens = {file: code_lines(file.read_text()) for file in files}
    code = {file: len(found) for file, found in tokens.items()}
    lines = {file: file.read_text().count("\n") for file in files}
    words = {*dir(builtins), *_NAMES_ELSEWHERE}
    for file, found in tokens.items():
        words.update(file.relative_to(ROOT).with_suffix("").parts)
        words.update(re.findall(r"\w+", " ".join(chain.from_iterable(found.values()))))
    folders = Counter(file.parent for file in files)
    first_words = Counter(
        (file.parent, file.stem.split("_")[0]) for file in files if not file.stem.startswith("_")
    )
    rooms_lines: Counter[str] = Counter()
    for file, count in lines.items():
        rooms_lines[room_of(file)] += count
    print(
        f"{sum(code.values()):,} lines of code in {len(files)} modules "
        f"({sum(lines.values()):,} lines)"
    )
    print("lines by room:", ", ".join(f"{room} {n:,}" for room, n in sorted(rooms_lines.items())))
    print("most files in a folder:")
    for folder, count in folders.most_common(5):
        print(f"  {count:3} {folder.relative_to(ROOT)}")
    print("longest modules:")
    for file in sorted(files, key=lambda f: -lines[f])[:5]:
        print(f"  {lines[file]:4} {file.relative_to(ROOT)}")
    wrong = [
        f"room {room} has {count:,} lines, at most {MOST_LINES.get(room, 0):,}"
        for room, count in rooms_lines.items()
        if count > MOST_LINES.get(room, 0)
    ]
    wrong += [
        f"{folder.relative_to(ROOT)} has {count} files, at most {MOST_FILES_IN_A_FOLDER}"
        for folder, count in folders.items()
        if count > MOST_FILES_IN_A_FOLDER
    ]
    wrong += [
        f"{file.relative_to(ROOT)} has {count} lines, at most {MOST_LINES_IN_A_MODULE}"
        for file, count in lines.items()
        if count > MOST_LINES_IN_A_MODULE
    ]
    wrong += [
        f"{file.relative_to(ROOT)} has {count} lines: split it, or give the reason in its head, "
        "in a line that begins with 'Long because'"
        for file, count in lines.items()
        if count > MOST_LINES_WITHOUT_A_REASON
        and not _REASON.search(ast.get_docstring(ast.parse(file.read_text())) or "")
    ]
    wrong += [
        f"{folder.relative_to(ROOT)} has {count} files that begin with {word!r}: make it a folder"
        for (folder, word), count in first_words.items()
        if count > MOST_FILES_WITH_ONE_FIRST_WORD
    ]
    wrong += [
        f"{file.relative_to(ROOT)}:{problem}"
        for file in files
        for problem in bad_docstrings(file.read_text(), words)
    ]
    wrong += [
        f"{file.relative_to(ROOT)}:{line}: an import by a string hides a circle from import-linter;"
        " move the code up, or pass the function"
        for file in files
        if file.relative_to(ROOT).as_posix() not in IMPORTS_BY_STRING
        for line in imports_by_string(file.read_text())
    ]
    wrong += [
        f".ci/structure.py: {name} imports nothing by a string; take it out of IMPORTS_BY_STRING"
        for name in sorted(IMPORTS_BY_STRING)
        if not list(imports_by_string((ROOT / name).read_text()))
    ]
    rooms = facades(sorted(PACKAGES[0].glob("*/**/*.py")))
    users = [*files, *chain.from_iterable((ROOT / top).rglob("*.py") for top in USERS_OF_ROOMS)]
    wrong += [
        f"{file.relative_to(ROOT)}:{problem}" for file in users for problem in bypasses(file, rooms)
    ]
    wrong += [
        f"{file.relative_to(ROOT)}:{problem}"
        for file in files
        if room_of(file) in BEFORE_DOORS
        for problem in past_doors(file)
    ]
    wrong += [
        f"{test} is named after no module or room at its path: move it to the folder of the module "
        "that it tests, as test_<module>.py or test_<module>_<aspect>.py"
        for test in misplaced_tests(files)
        if test.parts[1] not in CROSS_CUTTING_TESTS
    ]
    wrong += [
        f"changelog.d/{file.name} has no kind: name it +WORDS.{'|'.join(sorted(FRAGMENT_KINDS))}.md"
        for file in (ROOT / "changelog.d").iterdir()
        if file.name != ".gitkeep"  # keeps the folder after a release
        and file.name.removesuffix(".md").rpartition(".")[2] not in FRAGMENT_KINDS
    ]
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
