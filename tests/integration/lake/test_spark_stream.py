"""Streams from topics and into topics, restarted, limited, and killed while they commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException, StreamingQueryException

from firnmq.lake.spark import register
from tests.integration.kafka.nodes import QUICK, NodeProcess
from tests.integration.lake import killing
from tests.integration.lake.topics import Sent, committed, has_open, make_topic, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

COUNT = 90


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    served = NodeProcess(tmp_path_factory.mktemp("stream") / "data", QUICK)
    served.start()
    yield served
    served.close()


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)
    cloudpickle.register_pickle_by_value(killing)
    spark.dataSource.register(killing.KillingSource)


@pytest.fixture
def topics(node: NodeProcess, request: pytest.FixtureRequest) -> tuple[str, str]:
    """One to read from, filled, and one to write to."""
    name = request.node.name.split("[")[0].removeprefix("test_")
    make_topic(node.address, f"{name}.in", 2)
    make_topic(node.address, f"{name}.out", 3)
    fill(node, f"{name}.in", 0)
    return f"{name}.in", f"{name}.out"


def fill(node: NodeProcess, topic: str, start: int) -> None:
    records = [
        Sent(value=b"v%d" % index, key=b"k%d" % index, shard=index % 2)
        for index in range(start, start + COUNT)
    ]
    send(node.address, topic, records)


def copying(
    spark: SparkSession,
    node: NodeProcess,
    topics: tuple[str, str],
    scratch: Path,
    *,
    trigger: dict[str, Any],
    sink: str = "firn",
    **options: str,
) -> StreamingQuery:
    """From one topic to the other, all columns but the shard."""
    stream = (
        spark.readStream.format("firn")
        .options(bootstrap=node.address, topic=topics[0], **options)
        .load()
        .drop("shard")
    )
    writer = stream.writeStream.format(sink).options(
        bootstrap=node.address, topic=topics[1], checkpointLocation=str(scratch / "checkpoint")
    )
    if sink != "firn":
        writer = writer.option("orders", str(scratch / "orders"))
    return writer.trigger(**trigger).start()


def keys(node: NodeProcess, topic: str) -> list[bytes | None]:
    return sorted((each.key for each in committed(node.address, topic)), key=str)


def expected(count: int) -> list[bytes]:
    return sorted((b"k%d" % index for index in range(count)), key=str)


@pytest.mark.streaming
def test_limits_and_restarts(
    spark: SparkSession, node: NodeProcess, topics: tuple[str, str], tmp_path: Path
) -> None:
    # 1. All there is, in one batch.
    query = copying(spark, node, topics, tmp_path, trigger={"availableNow": True})
    query.awaitTermination()
    assert keys(node, topics[1]) == expected(COUNT)
    # 2. From the checkpoint, in batches of limited size; each shard gets its share.
    fill(node, topics[0], COUNT)
    query = copying(
        spark,
        node,
        topics,
        tmp_path,
        trigger={"processingTime": "100 milliseconds"},
        maxRowsPerTrigger="40",
    )
    query.processAllAvailable()
    query.stop()
    sizes = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
    assert sizes == [40, 40, 10]
    assert keys(node, topics[1]) == expected(2 * COUNT)
    # 3. Nothing new, nothing done.
    query = copying(spark, node, topics, tmp_path, trigger={"availableNow": True})
    query.awaitTermination()
    assert keys(node, topics[1]) == expected(2 * COUNT)


@pytest.mark.streaming
def test_a_driver_killed_at_each_step(
    spark: SparkSession, node: NodeProcess, topics: tuple[str, str], tmp_path: Path
) -> None:
    """Spark runs the batch again from its checkpoint, and every row is written once."""
    count = COUNT
    for step in ("begun", "noted", "ended"):
        (tmp_path / "orders").write_text(step)
        start = {"trigger": {"availableNow": True}, "sink": "firn_killing"}
        query = copying(spark, node, topics, tmp_path, **start)  # type: ignore[arg-type]
        with pytest.raises(StreamingQueryException):
            query.awaitTermination()
        assert not (tmp_path / "orders").exists(), "it died where it should"
        query = copying(spark, node, topics, tmp_path, **start)  # type: ignore[arg-type]
        query.awaitTermination()
        assert not has_open(node.address, topics[1])
        assert keys(node, topics[1]) == expected(count), step
        fill(node, topics[0], count)
        count += COUNT


def test_batch_writes(spark: SparkSession, node: NodeProcess) -> None:
    make_topic(node.address, "batches", 3)
    target = {"bootstrap": node.address, "topic": "batches"}
    frame = spark.range(60, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS key",
        "IF(id % 7 = 0, NULL, concat('value ', id)) AS value",
        "timestamp_millis(1700000000000 + id) AS timestamp",
        "array('blue', concat('t', id % 3)) AS tags",
        "IF(id % 2 = 0, array(named_struct('name', 'n', 'value', CAST(id AS STRING))), NULL)"
        " AS headers",
    )
    frame.write.format("firn").options(**target).mode("append").save()
    seen = {each.key: each for each in committed(node.address, "batches")}
    assert len(seen) == 60
    assert {each.shard for each in seen.values()} == {0, 1, 2}
    four = seen[b"4"]
    assert (four.value, four.timestamp_ms) == (b"value 4", 1_700_000_000_004)
    assert four.headers == (("n", b"4"), ("tag", b"blue"), ("tag", b"t1"))
    assert seen[b"7"].value is None
    # With a name for the write, a second run of the same job changes nothing.
    for _ in range(2):
        writer = frame.select("value").write.format("firn").options(**target, writeId="import 7")
        writer.mode("append").save()
    assert len(committed(node.address, "batches")) == 120


@pytest.mark.parametrize(
    ("columns", "mode", "message"),
    [
        ("id", "append", "make one value of them"),
        ("CAST(id AS STRING) AS key", "append", "there is no column 'value'"),
        ("id AS value", "append", "column 'value' cannot be bigint"),
        ("CAST(id AS STRING) AS value, 9 AS shard", "append", "9 is outside 0..2"),
        ("CAST(id AS STRING) AS value", "overwrite", "never overwritten"),
    ],
)
def test_rows_that_are_no_records(
    spark: SparkSession, node: NodeProcess, columns: str, mode: str, message: str
) -> None:
    name = f"wrong{abs(hash((columns, mode)))}"
    make_topic(node.address, name, 3)
    frame = spark.range(3).selectExpr(*columns.split(", "))
    with pytest.raises(PySparkException) as caught:
        frame.write.format("firn").options(bootstrap=node.address, topic=name).mode(mode).save()
    assert message in str(caught.value)
    assert committed(node.address, name) == []


@pytest.mark.streaming
def test_a_topic_made_anew_is_not_taken_for_the_old_one(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    from confluent_kafka.admin import AdminClient

    make_topic(node.address, "anew", 1)
    send(node.address, "anew", [Sent(value=b"old")])
    make_topic(node.address, "anew.out", 1)
    topics = ("anew", "anew.out")
    copying(spark, node, topics, tmp_path, trigger={"availableNow": True}).awaitTermination()
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.delete_topics(["anew"])["anew"].result(60)
    make_topic(node.address, "anew", 1)
    send(node.address, "anew", [Sent(value=b"new"), Sent(value=b"newer")])
    query = copying(spark, node, topics, tmp_path, trigger={"availableNow": True})
    with pytest.raises(StreamingQueryException, match="TopicReplaced"):
        query.awaitTermination()


@pytest.mark.streaming
def test_a_log_that_has_grown_again_is_not_taken_for_the_old_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    """1. A query has read a topic in memory. 2. Its node is killed, and gets more records than it
    had. 3. The query fails, restarted from its checkpoint."""
    node = NodeProcess(tmp_path / "data", QUICK)
    node.start()
    try:
        make_topic(node.address, "grown", 1, {"storage.type": "EngineMemory"})
        make_topic(node.address, "grown.out", 1)
        send(node.address, "grown", [Sent(value=b"old"), Sent(value=b"older")])
        topics = ("grown", "grown.out")
        copying(spark, node, topics, tmp_path, trigger={"availableNow": True}).awaitTermination()
        node.kill()
        node.start()
        send(node.address, "grown", [Sent(value=b"new %d" % number) for number in range(5)])
        query = copying(spark, node, topics, tmp_path, trigger={"availableNow": True})
        with pytest.raises(StreamingQueryException, match=r"LogReplaced.*offset 1 "):
            query.awaitTermination()
        assert [each.value for each in committed(node.address, "grown.out")] == [b"old", b"older"]
    finally:
        node.close()
