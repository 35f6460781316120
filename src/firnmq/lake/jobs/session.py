"""Spark sessions as the lake's own commands and tests use them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from firnmq.errors import FirnError
from firnmq.lake.jobs.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""For little data, where starting is most of the work."""

_QUIET_LOG = Path(__file__).with_name("log4j2.properties")
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_ALWAYS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Without it every read of a data source that takes filters fails.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}


class SparkNotStarted(FirnError):
    """There is no Spark to work with: a wrong master or setting, or a cluster that is not there."""

    def __init__(self, master: str | None, reason: str) -> None:
        where, how = f"on {master}", "--spark-conf"
        if master is None:
            where, how = "where spark-submit says", "--conf"
        super().__init__(
            f"Spark does not start {where}: {reason}; --master and {how} say where and how it runs"
        )
        self.master = master
        self.reason = reason


def spark_session(
    name: str = "firn",
    *,
    master: str | None = "local[*]",
    settings: Mapping[str, str] | None = None,
    is_quiet: bool = False,
) -> SparkSession:
    """The running session, or a new one: on this machine, on a named master, or for None on the
    one that `spark-submit` was given. A quiet one says only what went wrong."""
    use_java(is_quiet=is_quiet)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    chosen = {**_ALWAYS, **(settings or {})}
    if is_quiet:
        logging = f"-Dlog4j2.configurationFile={_QUIET_LOG.as_uri()}"
        chosen[_JAVA_OPTIONS] = f"{logging} {chosen.get(_JAVA_OPTIONS, '')}".strip()
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        raise SparkNotStarted(master, _start_failure(str(error))) from error


def _start_failure(text: str) -> str:
    """What Java said, where it came as far as that."""
    named = re.search(r"^: [\w.$]+: (.+)$", text, re.MULTILINE)
    return named[1] if named else text.partition("\n")[0]
