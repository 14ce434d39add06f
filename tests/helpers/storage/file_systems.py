"""File systems that behave as those of networks, macOS and full disks, over a folder of a test.

Each function patches calls of ``os`` for paths below one folder, so tests need no rights to mount.
"""

from __future__ import annotations

import builtins
import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

# Calls with one path, and with two.
_ONE_PATH = ("open", "stat", "lstat", "unlink", "mkdir", "scandir", "listdir", "access", "utime")
_TWO_PATHS = ("link", "replace", "rename")


def ignore_case(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """Let a folder find and keep names without regard to case, as on macOS and Windows."""
    real_listdir, prefix = os.listdir, f"{root.parent}{os.sep}"

    def stored(path):
        """Return the path under the names that are stored."""
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
        if text is None or not f"{text}{os.sep}".casefold().startswith(prefix.casefold()):
            return path
        found = str(root.parent)
        for name in text[len(prefix) :].split(os.sep):
            try:
                names = real_listdir(found)
            except OSError:
                names = []
            same = [each for each in names if each.casefold() == name.casefold()]
            found = os.path.join(found, name if name in names or not same else same[0])
        return found

    def patch(module, name, paths):
        real = getattr(module, name)

        def call(*arguments, **keywords):
            return real(*map(stored, arguments[:paths]), *arguments[paths:], **keywords)

        monkeypatch.setattr(module, name, call)

    for name in _ONE_PATH:
        patch(os, name, 1)
    for name in _TWO_PATHS:
        patch(os, name, 2)
    patch(builtins, "open", 1)


def fail_once(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    number: int,
    *,
    after: bool = False,
    meets: Callable[..., bool] = lambda *arguments: True,
    also: Callable[..., None] = lambda *arguments: None,
) -> list[tuple]:
    """Let the next matching call of ``os`` fail, perhaps after it has succeeded.

    Returns the list of the calls that failed; ``also`` is called before the failure.
    """
    real, failed = getattr(os, name), []

    def call(*arguments, **keywords):
        if failed or not meets(*arguments):
            return real(*arguments, **keywords)
        failed.append(arguments)
        if after:
            real(*arguments, **keywords)
        also(*arguments)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, name, call)
    return failed


def fail_always(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    number: int,
    meets: Callable[..., bool] = lambda *arguments: True,
    module: object = os,
) -> None:
    """Let all matching calls fail."""
    real = getattr(module, name)

    def call(*arguments, **keywords):
        if meets(*arguments):
            raise OSError(number, os.strerror(number))
        return real(*arguments, **keywords)

    monkeypatch.setattr(module, name, call)


def is_creation(path: object, flags: int = 0, *_: object) -> bool:
    """Return True for calls of ``os.open`` that create a file."""
    return bool(flags & os.O_CREAT)


NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
