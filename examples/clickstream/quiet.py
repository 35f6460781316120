"""A Spark session whose JVM talks into a file, so that a person sees the story alone."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from firnmq.lake.jobs.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def quiet_session(master: str, settings: Mapping[str, str], log: Path) -> SparkSession:
    with warnings.catch_warnings(), _standard_error(log):
        warnings.simplefilter("ignore")
        return spark_session(
            "clickstream", master=master, settings={"spark.log.level": "ERROR", **settings}
        )


@contextmanager
def _standard_error(log: Path) -> Iterator[None]:
    """What is started inside writes its errors there, for as long as it lives."""
    sys.stderr.flush()
    before = os.dup(2)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as target:
        os.dup2(target.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
