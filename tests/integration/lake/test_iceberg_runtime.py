"""The table through Iceberg's own runtime for Spark, on the same catalog: SQLite, or by REST.

Needs Maven and what it can fetch: `pytest -m iceberg tests/integration/lake`. It runs in a Spark of
its own, in a process of its own, since jars are for a whole JVM.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.kafka.nodes import NodeProcess
from tests.integration.lake.iceberg_runtime import fetched_jars
from tests.integration.lake.lab import (
    new_topic,
    numbered,
    options_of,
    produce,
    sync_here,
)
from tests.integration.lake.rest_catalog import RestCatalogProcess

TIMEOUT_S = 300

QUERY = """
import json, sys
from firnmq.lake.jobs.session import SMALL, spark_session
jars, catalog, table = sys.argv[1:]
firn = "spark.sql.catalog.firn"
spark = spark_session("iceberg", master="local[1]", settings={
    **SMALL,
    "spark.jars": jars,
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    firn: "org.apache.iceberg.spark.SparkCatalog",
    **{f"{firn}.{name}": value for name, value in json.loads(catalog).items()},
})
rows = spark.sql(
    f"SELECT shard, offset, unix_millis(timestamp), key, value FROM firn.topics.{table} "
    "ORDER BY shard, offset"
).collect()
hours = spark.sql(
    f"SELECT count(*) FROM firn.topics.{table} WHERE timestamp >= '2026-01-01 13:00:00' "
    "AND timestamp < '2026-01-01 14:00:00'"
).collect()
print(json.dumps({
    "rows": [[*row[:3], bytes(row[3]).decode(), bytes(row[4]).decode()] for row in rows],
    "hour": hours[0][0],
}))
spark.stop()
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path / "data")
    node.start()
    yield node
    node.close()


@pytest.mark.iceberg
@pytest.mark.skipif(shutil.which("mvn") is None, reason="needs Maven")
def test_spark_sql_reads_the_table_natively(node: NodeProcess, tmp_path: Path) -> None:
    options = options_of(node, new_topic(node, "orders"), tmp_path / "lake")
    database = options["catalog"].removeprefix("sqlite:///")
    catalog = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{database}",
        "warehouse": options["warehouse"],
    }
    _read_natively(node, options, catalog)


@pytest.mark.iceberg
@pytest.mark.skipif(shutil.which("mvn") is None, reason="needs Maven")
def test_spark_sql_reads_the_table_of_a_rest_catalog(tmp_path: Path) -> None:
    """Which the node names, without a warehouse: the catalog has its own."""
    server = RestCatalogProcess(tmp_path / "rest")
    server.start()
    node = NodeProcess(tmp_path / "data", {"FIRN_LAKE_CATALOG": server.url})
    try:
        node.start()
        options = options_of(node, new_topic(node, "orders"))
        _read_natively(node, options, {"type": "rest", "uri": server.url})
    finally:
        if node.is_running:
            node.close()
        server.kill()


def _read_natively(node: NodeProcess, options: dict[str, str], catalog: dict[str, str]) -> None:
    topic = options["topic"]
    sent = produce(node, topic, numbered(200))
    sync_here(options, partition="hour")
    done = subprocess.run(
        [
            *(sys.executable, "-c", QUERY, ",".join(map(str, fetched_jars()))),
            *(json.dumps(catalog), topic.replace(".", "_")),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["rows"] == [
        [each.shard, each.offset, each.timestamp_ms, each.key.decode(), each.value.decode()]
        for each in sent
        if each.key is not None and each.value is not None
    ]
    hour = range(sent[0].timestamp_ms + 3_600_000, sent[0].timestamp_ms + 7_200_000)
    assert found["hour"] == sum(each.timestamp_ms in hour for each in sent) == 60
