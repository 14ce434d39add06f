"""Refuses releases of Spark that this package cannot use.

`icechunk_spark` imports this module before all others, which need modules of Spark 4.0.
"""

from __future__ import annotations

import re
from typing import Final

from pyspark import __version__

from icechunk_format.errors import UnsupportedError

#: The oldest release of Spark that this package supports.
OLDEST: Final = (4, 0)
#: The page of the manual about platforms, for errors.
PAGE: Final = "https://github.com/icechunk-spark/icechunk-spark/blob/main/docs/platforms/index.md"


def require_supported_spark(version: str | None, what: str = "PySpark") -> None:
    """Raise UnsupportedError for a release before Spark 4.0; versions without numbers pass."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    if found is None or (int(found[1]), int(found[2])) >= OLDEST:
        return
    raise UnsupportedError(
        f"icechunk_spark needs Spark 4.0 or newer, and {what} is {version}: choose a release of the"
        " platform with Spark 4 (Databricks 17.3 LTS, EMR emr-spark-8.0.0, Dataproc 3.0, Fabric"
        f" Runtime 2.0, or newer), see {PAGE}; icechunk_format reads and writes without Spark",
        found=version,
    )


require_supported_spark(__version__)
