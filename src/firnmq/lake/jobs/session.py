"""Spark sessions as the lake's own commands and tests use them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
_LOOPBACK: Mapping[str, str] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
_ADDRESS_VARIABLE = "SPARK_LOCAL_IP"


class SparkNotStarted(FirnError):
    """Spark cannot be started: a wrong master or setting, or an unreachable cluster."""

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
    one that `spark-submit` was given. A quiet one says only what went wrong. One on this machine
    listens for this machine only."""
    use_java(is_quiet=is_quiet)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    is_local = master is not None and master.startswith("local")
    chosen = {**_ALWAYS, **(_LOOPBACK if is_local else {}), **(settings or {})}
    if is_quiet:
        logging = f"-Dlog4j2.configurationFile={_QUIET_LOG.as_uri()}"
        chosen[_JAVA_OPTIONS] = f"{logging} {chosen.get(_JAVA_OPTIONS, '')}".strip()
    for key, value in chosen.items():
        builder = builder.config(key, value)
    try:
        with _local_address(is_local=is_local):
            return builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        raise SparkNotStarted(master, _start_failure(str(error))) from error


@contextmanager
def _local_address(*, is_local: bool) -> Iterator[None]:
    """Sets the variable that is the only setting for the address of Spark's UI."""
    if not is_local or _ADDRESS_VARIABLE in os.environ:
        yield
        return
    os.environ[_ADDRESS_VARIABLE] = "127.0.0.1"
    try:
        yield
    finally:
        del os.environ[_ADDRESS_VARIABLE]


def _start_failure(text: str) -> str:
    """Java's own message, if Java was started."""
    named = re.search(r"^: [\w.$]+: (.+)$", text, re.MULTILINE)
    return named[1] if named else text.partition("\n")[0]
