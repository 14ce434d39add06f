"""The command runs as a process of its own: streams, exit codes, pipes, a terminal, its start."""

import json
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-m", "icechunk_format.command_line"]


def run(*arguments, **options):
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
        **options,
    )


def test_answers_are_on_stdout_and_errors_on_stderr(weather_on_disk):
    done = run("log", weather_on_disk.url, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["snapshots"][0]["message"] == "Change it"
    failed = run("log", weather_on_disk.url, "--json", "-b", "nope")
    assert (failed.returncode, failed.stdout) == (1, b"")
    assert failed.stderr.startswith(b"error: there is no branch 'nope'")


def test_a_pipe_gets_no_colours_and_whole_lines(weather_on_disk):
    narrow = {**os.environ, "COLUMNS": "20", "TERM": "xterm-256color", "PYTHONUTF8": "1"}
    narrow.pop("FORCE_COLOR", None)
    text = run("tree", weather_on_disk.url, env=narrow).stdout.decode()
    assert "\x1b" not in text
    assert any("2 of 2, 2 virtual  3.0 kB elsewhere" in line for line in text.splitlines())


def test_an_output_without_line_drawing_gets_ascii(weather_on_disk):
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = run("log", weather_on_disk.url, env=plain)
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert done.stdout.startswith(b"*    ")


def test_a_closed_pipe_is_nothing_to_talk_about(weather_on_disk):
    with subprocess.Popen(
        [*PROGRAM, "log", weather_on_disk.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 4)])
def test_at_a_terminal_it_asks(weather_on_disk, answer, code):
    shown, status = at_a_terminal(
        ["branch", "delete", weather_on_disk.url, "audit"], answer, columns=80
    )
    assert "1 snapshot would be in no branch or tag:" in shown
    assert re.search(r"Delete branch audit, which is at \w{20}\? \[y/N\]", shown)
    assert status == code
    assert ("audit" in weather_on_disk.repository.branches()) is (answer == "n")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_narrow_terminal_gets_arrays_in_several_lines(weather_on_disk):
    shown, status = at_a_terminal(["tree", weather_on_disk.url], "", columns=60)
    assert status == 0
    assert "\x1b[" in shown
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in shown.splitlines()]
    start = next(n for n, line in enumerate(lines) if line.endswith("ice  float32"))
    assert [line.rstrip() for line in lines[start : start + 4]] == [
        "│   └── ice  float32",
        "│           dim_0 8 × x 8",
        "│           chunks 2 × 2 · shards 4 × 8 · sharding(bytes, zstd)",
        "│           2 of 2, 2 virtual chunks stored · 3.0 kB elsewhere",
    ]


def at_a_terminal(arguments, answer, *, columns):
    """Run the command at a pseudo-terminal; returns what it showed, and its exit code."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "PYTHONUTF8": "1"}
    for name in ("COLUMNS", "NO_COLOR"):
        environment.pop(name, None)
    with subprocess.Popen(
        [*PROGRAM, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown, deadline = b"", time.monotonic() + 60
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 1)[0]:
                continue
            try:
                part = os.read(ours, 4096)
            except OSError:
                break
            if not part:
                break
            shown += part
            if answer and b"[y/N]" in shown:
                os.write(ours, f"{answer}\n".encode())
                answer = ""
        status = process.wait(60)
    os.close(ours)
    return shown.decode(), status


def test_help_loads_nothing_that_reads_repositories():
    code = (
        "import sys\n"
        "from icechunk_format.command_line.entry import run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'numpy', 'pyarrow', 'fsspec', 'obstore', 'zstandard', 'yaml', 'rich.progress'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(missing):
    code = (
        "import sys\n"
        f"sys.modules[{missing!r}] = None\n"
        "sys.argv[1:] = ['log', 'x']\n"
        "from icechunk_format.command_line.entry import main\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (7, "")
    assert done.stderr == (
        f"error: icechunk-spark needs the package {missing!r}, which is not installed; install it"
        ' with: pip install "icechunk-spark[cli]"\n'
    )


def test_the_command_is_installed_by_its_name():
    program = Path(sys.executable).with_name("icechunk-spark")
    done = subprocess.run(
        [str(program), "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert re.fullmatch(r"icechunk-spark \d+\.\d+\.\d+\S*\n", done.stdout)
