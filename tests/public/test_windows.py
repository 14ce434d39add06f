"""The format is imported, and reads local repositories, without the modules of POSIX."""

from __future__ import annotations

import os
import subprocess
import sys

from helpers.builder import add_array

from icechunk_format.repository import Repository

_WITHOUT_POSIX = """
import importlib, os, pkgutil, sys
# Loaded first, since they know the real system.
import fsspec, multiprocessing, numpy, obstore, obstore.store, pyarrow, s3fs, numcodecs
import sysconfig; sysconfig.get_config_vars()
import concurrent.futures, asyncio, shapely, exactextract, pyproj, typer, rich, tqdm, deltalake

for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("fork", "geteuid", "getuid", "mkfifo", "fchmod", "O_NOFOLLOW", "O_NONBLOCK"):
    delattr(os, name)
sys.platform = "win32"
import icechunk_format

for module in pkgutil.walk_packages(icechunk_format.__path__, "icechunk_format."):
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        assert error.name.partition(".")[0] in sys.argv[2].split(","), error

from icechunk_format.errors import UnsupportedError
from icechunk_format.repository import Repository
from icechunk_format.tables import open_dataset

repository = Repository.open(sys.argv[1])
assert open_dataset(repository, repository.resolve()).read("a").tobytes() == bytes([0, 120, 0, 0])
session = repository.writable_session()
session.set_chunk("/a", [0], b"y")
try:
    session.commit("refused")
except UnsupportedError as error:
    assert "on Windows" in str(error)
else:
    raise AssertionError("a commit without a lock")
"""
_OPTIONAL = "virtualizarr,obspec_utils,h5py,kerchunk,astropy,xarray,zarr,icechunk,pandas,cftime"


def test_local_repositories_are_read_where_files_cannot_be_locked(tmp_path):
    repository = Repository.create(str(tmp_path / "r"))
    session = repository.writable_session()
    add_array(session, "/a", (4,))
    session.set_chunk("/a", [1], b"x")
    session.commit("first")
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_POSIX, str(tmp_path / "r"), _OPTIONAL],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
