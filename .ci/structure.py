"""Count the code: lines, files in each folder, the longest modules; fail above the ceilings.

A line counts when it holds code: blank lines, comments and docstrings do not. Import circles are
checked by import-linter, whose contracts are in ``pyproject.toml``. Run by ``make check``.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (ROOT / "format" / "icechunk_format", ROOT / "icechunk_spark")
# Ceilings are what was reached; lower them when the code gets smaller, and do not raise them to
# let a change in that could be smaller itself.
MOST_CODE_LINES = 51_617
MOST_FILES_IN_A_FOLDER = 12
MOST_LINES_IN_A_MODULE = 499
MOST_FILES_WITH_ONE_FIRST_WORD = 2

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that docstrings and other bare strings take."""
    found: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)):
                found.update(range(first, last + 1))
    return found


def code_lines(text: str) -> int:
    """Return how many lines of a module hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(ast.parse(text)))


def main() -> int:
    """Print the figures; return 1 when one is above its ceiling."""
    files = sorted(file for package in PACKAGES for file in package.rglob("*.py"))
    code = {file: code_lines(file.read_text()) for file in files}
    lines = {file: file.read_text().count("\n") for file in files}
    folders = Counter(file.parent for file in files)
    words = Counter(
        (file.parent, file.stem.split("_")[0]) for file in files if not file.stem.startswith("_")
    )
    total = sum(code.values())
    print(f"{total:,} lines of code in {len(files)} modules ({sum(lines.values()):,} lines)")
    print("most files in a folder:")
    for folder, count in folders.most_common(5):
        print(f"  {count:3} {folder.relative_to(ROOT)}")
    print("longest modules:")
    for file in sorted(files, key=lambda f: -lines[f])[:5]:
        print(f"  {lines[file]:4} {file.relative_to(ROOT)}")
    wrong = []
    if total > MOST_CODE_LINES:
        wrong.append(f"more than {MOST_CODE_LINES:,} lines of code")
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
        f"{folder.relative_to(ROOT)} has {count} files that begin with {word!r}: make it a folder"
        for (folder, word), count in words.items()
        if count > MOST_FILES_WITH_ONE_FIRST_WORD
    ]
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
