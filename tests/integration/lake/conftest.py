"""One Spark for all tests of the lake in a process: starting one takes longer than most tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from firnmq.lake.session import SMALL, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two threads on this machine. Leave it running, and set nothing that others would see."""
    scratch = tmp_path_factory.mktemp("spark")
    settings = {
        **SMALL,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.log.level": "ERROR",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own, about the packages that it was given.
        session = spark_session("firn-tests", master="local[2]", settings=settings)
    yield session
    session.stop()
