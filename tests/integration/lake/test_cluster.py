"""Topics of a cluster as tables: plans from any node cover the shards of all nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from firnmq.errors import FirnError
from firnmq.lake.plans.places import make_plan
from firnmq.lake.plans.plan import Wanted
from firnmq.lake.spark import register
from tests.integration.admin.serving import firn
from tests.integration.cluster.nodes import WAIT_S, Nodes
from tests.integration.lake.lab import numbered, options_of, produce, rows_of, sync_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHARDS = 6


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    settings = {
        "FIRN_TIERING_URL": (tmp_path / "objects").as_uri(),
        "FIRN_TIERING_INTERVAL_MS": "50",
    }
    with closing(Nodes(tmp_path / "nodes", settings=settings)) as found:
        (tmp_path / "nodes").mkdir()
        found.start()
        yield found


def _new_topic(nodes: Nodes, name: str, **config: object) -> str:
    options = {key.replace("_", "."): str(value) for key, value in config.items()}
    topic = NewTopic(name, num_partitions=_SHARDS, replication_factor=1, config=options)
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
    admin.create_topics([topic])[name].result(WAIT_S)
    for number in nodes.processes:
        nodes.wait_leaders(number, name)
    return name


def _upload(nodes: Nodes, through: int) -> None:
    done = firn("tier", "upload", "--roll", "--node", nodes[through].admin_url)
    assert done.returncode == 0, done.stderr


def test_a_sync_through_any_node_has_each_record_once(
    nodes: Nodes, spark: SparkSession, tmp_path: Path
) -> None:
    """1. A sync through one node takes the records of all. 2. What is deleted through another one
    leaves the table. 3. While a node is away its shards are, and the sync says so. 4. It goes on
    when the node is back, through another one. 5. Spark reads the table and the rest as one."""
    topic = _new_topic(nodes, "clicks", tiering="on", local_retention_ms=0, index_key="true")
    sent = produce(nodes[1], topic, numbered(300, shards=_SHARDS))
    _upload(nodes, 2)
    sent += produce(nodes[2], topic, numbered(120, start=300, shards=_SHARDS))
    at = options_of(nodes[2], topic)
    plan = make_plan(at)
    leaders = nodes.leaders(1, topic)
    assert {shard.shard: shard.leader for shard in plan.shards} == {
        shard: nodes[node].address for shard, node in leaders.items()
    }
    done = sync_here(at)
    assert done.row_count == 420
    assert rows_of(at) == sorted(each.row for each in sent)

    gone = firn("delete", topic, "--key", "key-7", "--yes", "--node", nodes[3].admin_url)
    assert gone.returncode == 0, gone.stderr
    sync_here(options_of(nodes[3], topic))
    sent = [each for each in sent if each.key != b"key-7"]
    assert rows_of(at) == sorted(each.row for each in sent)

    nodes[1].kill()
    nodes.wait_registered(2, 3)
    with pytest.raises(FirnError, match="node 1"):
        make_plan(at, Wanted())
    nodes[1].start()
    nodes.wait_registered()
    sent += produce(nodes[1], topic, numbered(60, start=420, shards=_SHARDS))
    sync_here(options_of(nodes[1], topic))
    assert rows_of(at) == sorted(each.row for each in sent)

    later = produce(nodes[3], topic, numbered(60, start=480, shards=_SHARDS))
    register(spark)
    frame = spark.read.format("firn").options(**options_of(nodes[2], topic)).load()
    found = sorted((row.shard, row.offset) for row in frame.select("shard", "offset").collect())
    assert found == sorted((each.shard, each.offset) for each in (*sent, *later))
