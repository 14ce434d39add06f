"""Checks a repository for an alert, without Spark: a line for each problem, and exit code 1 if any.

``python check.py REPOSITORY --max-age 26 --max-snapshots 5000 --max-gigabytes 500 --verify``
"""

import argparse
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from icechunk_format import Repository, maintenance


def problems(given: argparse.Namespace) -> Iterator[str]:
    """Yield the problems of a repository, those that are found fast first."""
    repository = Repository.open(given.repository)
    newest = repository.snapshot_info(repository.resolve(branch=given.branch))
    committed = datetime.fromtimestamp(newest.flushed_at / 1e6, UTC)
    if given.max_age is not None:
        age = datetime.now(UTC) - committed
        if age > timedelta(hours=given.max_age):
            yield f"stale: the newest commit of {given.branch} is from {committed:%F %H:%M} UTC"
    if given.max_snapshots is not None:
        count = len(repository.snapshots())
        if count > given.max_snapshots:
            yield f"growth: {count:,} snapshots: expire old ones, then collect garbage"
    if given.max_gigabytes is not None:
        size = sum(one.size for one in repository.storage.list()) / 1e9
        if size > given.max_gigabytes:
            yield f"growth: {size:,.1f} GB: expire old snapshots, then collect garbage"
    if given.verify:
        found = maintenance.verify(given.repository).to_pylist()
        errors = [one for one in found if one["severity"] == "error"]
        if errors:
            where, what = errors[0]["object_key"], errors[0]["problem"]
            yield f"damaged: {len(errors)} errors, such as {where}: {what}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("repository")
    parser.add_argument("--branch", default="main")
    parser.add_argument("--max-age", type=float, help="hours since the newest commit")
    parser.add_argument("--max-snapshots", type=int)
    parser.add_argument("--max-gigabytes", type=float)
    parser.add_argument("--verify", action="store_true", help="check every file and reference")
    found = list(problems(parser.parse_args()))
    print("\n".join(found) or "no problems", file=sys.stderr if found else sys.stdout)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
