"""Users' programs are checked with the types of both packages, by mypy and by pyright.

Both take types from an installed package only where it has ``py.typed``. The program lies outside
of the project, so that neither tool finds the packages beside it, nor the project's settings.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "consumer.py"
# What a library owes to strict users: whatever it returns has a type, and that type is right.
PYRIGHT = {
    "typeCheckingMode": "strict",
    "reportUnnecessaryTypeIgnoreComment": "error",
    "reportMissingTypeStubs": "none",
}


@pytest.mark.parametrize(
    "command",
    [
        # The cache keeps the types of NumPy and pandas, which take most of the time.
        [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={sys.prefix}/mypy-cache"],
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable],
    ],
    ids=["mypy", "pyright"],
)
def test_a_program_is_checked(command, tmp_path):
    shutil.copy(PROGRAM, tmp_path / "program.py")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    more = [] if "basedpyright" in command else ["program.py"]
    done = subprocess.run([*command, *more], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
