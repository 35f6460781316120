"""Spark sessions as the lake's own commands and tests use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from firnmq.lake.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""For little data, where starting is most of the work."""

_ALWAYS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Without it every read of a data source that takes filters fails.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}


def spark_session(
    name: str = "firn",
    *,
    master: str | None = "local[*]",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """The running session, or a new one: on this machine, on a named master, or for None on the
    one that `spark-submit` was given."""
    use_java()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in {**_ALWAYS, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
