"""One Spark for all tests of the lake in a process: starting one takes longer than most tests."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from firnmq.lake.jobs.session import SMALL, spark_session
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.lake.syncs import Syncs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark leaves its sockets, those of results too, to the garbage collector."""
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            if "spark" in getattr(item, "fixturenames", ()):
                unraisable = "ignore::pytest.PytestUnraisableExceptionWarning"
                item.add_marker(pytest.mark.filterwarnings(unraisable))


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    """What is left of them is not found while other tests run."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One with nothing but defaults; a file that wants another has its own."""
    served = NodeProcess(tmp_path_factory.mktemp("node") / "data")
    served.start()
    yield served
    served.close()


@pytest.fixture(scope="module")
def syncs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Syncs]:
    made = Syncs(tmp_path_factory.mktemp("syncs") / "errors.txt")
    yield made
    made.close()


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
