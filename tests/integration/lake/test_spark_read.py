"""`spark.read.format("firn")`: every committed record once, as it was written, and no more work
than the question needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812

from firnmq.lake.spark import register
from firnmq.lake.spark.filters import Limits
from firnmq.lake.spark.options import read_options
from firnmq.lake.spark.planning import plan_pieces, wanted_of
from tests.integration.kafka.nodes import QUICK, NodeProcess
from tests.integration.lake.topics import Sent, make_topic, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHARDS = 2
COUNT = 1200
BEGIN_MS = 1_700_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def numbered(index: int) -> Sent:
    """Records a minute apart; keys and tags repeat."""
    return Sent(
        value=None if index % 50 == 7 else b"v%d " % index + b"x" * 200,
        key=None if index % 40 == 3 else b"k%d" % (index % 100),
        headers=(("trace", b"%d" % index), ("tag", b"t%d" % (index % 10)), ("empty", None))
        if index % 3 == 0
        else (),
        timestamp_ms=BEGIN_MS + 60_000 * index,
        shard=index % SHARDS,
    )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    served = NodeProcess(tmp_path_factory.mktemp("read") / "data", QUICK)
    served.start()
    options = {"segment.bytes": "1024", "index.key": "true", "index.tag": "true"}
    make_topic(served.address, "numbers", SHARDS, options)
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    for number, begin in enumerate(range(0, COUNT, 60)):  # A batch for each shard, or more.
        records = [numbered(index) for index in range(begin, begin + 60)]
        send(served.address, "numbers", records, codecs[number % 5])
    yield served
    served.close()


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def frame(spark: SparkSession, node: NodeProcess, **options: str) -> DataFrame:
    reader = spark.read.format("firn").option("bootstrap", node.address).option("topic", "numbers")
    return reader.options(**options).load()


def expected(indexes: range | list[int]) -> list[tuple[Any, ...]]:
    rows = []
    for index in indexes:
        sent = numbered(index)
        tags = [value.decode() for name, value in sent.headers if name == "tag" and value]
        rows.append(
            (
                sent.shard,
                index // SHARDS,
                EPOCH + timedelta(milliseconds=sent.timestamp_ms),
                sent.key,
                sent.value,
                list(sent.headers),
                tags,
            )
        )
    return sorted(rows, key=lambda row: row[:2])


def collected(found: DataFrame) -> list[tuple[Any, ...]]:
    rows = [
        (
            row.shard,
            row.offset,
            row.timestamp.astimezone(UTC),
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            [(each.key, None if each.value is None else bytes(each.value)) for each in row.headers],
            list(row.tags),
        )
        for row in found.collect()
    ]
    return sorted(rows, key=lambda row: row[:2])


def test_every_record_is_there_once_and_equal(spark: SparkSession, node: NodeProcess) -> None:
    found = frame(spark, node)
    assert collected(found) == expected(range(COUNT))


def test_narrower_schema(spark: SparkSession, node: NodeProcess) -> None:
    reader = spark.read.format("firn").option("bootstrap", node.address).option("topic", "numbers")
    found = reader.schema("value BINARY, offset BIGINT").load()
    assert found.columns == ["value", "offset"]
    values = sorted((row.offset, row.value) for row in found.collect() if row.value is not None)
    sent = [numbered(index) for index in range(COUNT)]
    assert values == sorted(
        (index // SHARDS, each.value) for index, each in enumerate(sent) if each.value is not None
    )


def plans(node: NodeProcess, **options: str) -> int:
    """How many segments a read would look at."""
    given = read_options({"bootstrap": node.address, "topic": "numbers", **options})
    pieces = plan_pieces(given, wanted_of(given, Limits(wanted=given.wanted)))
    return sum(len(piece.segments) for piece in pieces)  # type: ignore[union-attr]


def test_filters_choose_rows_and_segments(spark: SparkSession, node: NodeProcess) -> None:
    middle = EPOCH + timedelta(milliseconds=BEGIN_MS + 60_000 * 600)
    cases: list[tuple[Any, list[int]]] = [
        (F.col("shard") == 1, [index for index in range(COUNT) if index % 2 == 1]),
        (F.col("offset") >= 590, list(range(1180, COUNT))),
        ((F.col("offset") > 5) & (F.col("offset") <= 8), list(range(12, 18))),
        (F.col("timestamp") >= F.lit(middle), list(range(600, COUNT))),
        (F.col("timestamp") < F.lit(middle), list(range(600))),
        (F.col("key") == F.lit(b"k42"), list(range(42, COUNT, 100))),
        (
            F.col("key").isin([b"k1", b"k2"]),
            [
                index
                for index in range(COUNT)
                if index % 100 in (1, 2) and numbered(index).key is not None
            ],
        ),
        (F.array_contains("tags", "t9"), [i for i in range(COUNT) if i % 10 == 9 and i % 3 == 0]),
        (F.col("value").isNull(), list(range(7, COUNT, 50))),
        ((F.col("shard") == 0) & (F.col("shard") == 1), []),
        (F.col("shard") == 99, []),
        ((F.col("shard") == 99) & (F.col("offset") < 3), []),
        (F.col("shard").isin(1, 99) & (F.col("offset") < 2), [1, 3]),
    ]
    for condition, indexes in cases:
        found = frame(spark, node, pushFilters="true").where(condition)
        assert collected(found) == expected(indexes), condition
    found = frame(spark, node, pushFilters="true")
    plan = found.where((F.col("shard") == 1) & (F.col("offset") > 3))._jdf.queryExecution()
    assert ") Filter " not in plan.executedPlan().toString(), "Spark need not look again"


def test_an_option_must_name_shards_that_are_there(spark: SparkSession, node: NodeProcess) -> None:
    """Unlike a filter, which may be about anything."""
    for more in ({}, {"pushFilters": "true"}):
        with pytest.raises(PySparkException, match="no shard '99'"):
            frame(spark, node, shards="99", **more).where("shard = 99").collect()


def test_a_data_frame_can_be_used_again(spark: SparkSession, node: NodeProcess) -> None:
    """Without pushFilters, since Spark would give the second use the plan of the first."""
    found = frame(spark, node)
    assert found.where("offset < 3").count() == 6
    assert found.count() == COUNT
    assert found.where("key = 'k42'").count() == 12
    both = found.where("shard = 0 AND offset < 5").union(found.where("shard = 1 AND offset > 597"))
    assert sorted((row.shard, row.offset) for row in both.collect()) == [
        *((0, offset) for offset in range(5)),
        *((1, offset) for offset in (598, 599)),
    ]


def test_options_choose_rows_and_segments(spark: SparkSession, node: NodeProcess) -> None:
    total = plans(node)
    assert total > 10
    late = str(BEGIN_MS + 60_000 * 1100)
    cases: list[tuple[dict[str, str], list[int]]] = [
        ({"shards": "1"}, [index for index in range(COUNT) if index % 2 == 1]),
        (
            {"startingOffsets": '{"0": 10, "1": "latest"}', "endingOffsets": '{"0": 12}'},
            [20, 22],
        ),
        ({"startingOffsets": "latest"}, []),
        ({"startingTimestamp": late}, list(range(1100, COUNT))),
        ({"endingTimestamp": "2023-11-14T22:15:20Z"}, [0, 1]),
        ({"key": "k42"}, list(range(42, COUNT, 100))),
        ({"tag": "t9"}, [i for i in range(COUNT) if i % 10 == 9 and i % 3 == 0]),
        ({"keys": '["k42", "none"]', "shards": "1"}, []),
    ]
    for options, indexes in cases:
        assert collected(frame(spark, node, **options)) == expected(indexes), options
    for options in (
        {"startingOffsets": '{"0": 10, "1": "latest"}', "endingOffsets": '{"0": 12}'},
        {"startingTimestamp": late},
        {"shards": "0"},
        {"tag": "t9"},
        {"key": "k42"},
    ):
        assert 0 < plans(node, **options) < total
    assert plans(node, key="nowhere") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "nothing"}, "TopicNotFound"),
        ({"startingOfsets": "latest"}, "is startingOffsets meant?"),
        ({"startingOffsets": "[1]"}, "neither earliest nor latest"),
        ({"shards": "7"}, "7"),
        ({"maxRowsPerTrigger": "5"}, "is for streams"),
        ({"bootstrap": "127.0.0.1:1"}, "cannot be reached"),
    ],
)
def test_a_mistake_is_named(
    spark: SparkSession, node: NodeProcess, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        frame(spark, node, **options).collect()
    assert message in str(caught.value)


def test_a_schema_that_is_not_a_records(spark: SparkSession, node: NodeProcess) -> None:
    reader = spark.read.format("firn").option("bootstrap", node.address).option("topic", "numbers")
    with pytest.raises(PySparkException, match="column 'offset' is bigint, not string"):
        reader.schema("offset STRING").load().collect()
    with pytest.raises(PySparkException, match="no column 'nonsense'"):
        reader.schema("nonsense STRING").load().collect()


def test_an_empty_topic(spark: SparkSession, node: NodeProcess) -> None:
    make_topic(node.address, "empty", 3)
    assert frame(spark, node, topic="empty").count() == 0


def test_nested_columns_that_may_be_null(spark: SparkSession, node: NodeProcess) -> None:
    """As DDL has them, where a record's own never are."""
    reader = spark.read.format("firn").option("bootstrap", node.address).option("topic", "numbers")
    schema = "tags ARRAY<STRING>, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, shard INT"
    found = reader.option("key", "k42").schema(schema).load().collect()
    wanted = [numbered(index) for index in range(42, COUNT, 100)]
    assert sorted(len(row.headers) for row in found) == sorted(len(e.headers) for e in wanted)
    assert {row.shard for row in found} == {0}


def test_reading_while_the_log_grows_and_rolls(spark: SparkSession, node: NodeProcess) -> None:
    """Every read gives all that was acknowledged before it, from the first record on, no gap."""
    make_topic(node.address, "growing", SHARDS, {"segment.bytes": "16384"})
    acknowledged = 0
    grew = threading.Condition()
    stop = threading.Event()

    def grow() -> None:
        nonlocal acknowledged
        while not stop.is_set():
            numbers = range(acknowledged, acknowledged + 100)
            send(node.address, "growing", [numbered(each) for each in numbers])
            with grew:
                acknowledged += 100
                grew.notify()

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        found = 0
        for _ in range(3):
            with grew:
                assert grew.wait_for(lambda seen=found: acknowledged > seen, timeout=60)
                at_least = acknowledged
            rows = frame(spark, node, topic="growing").select("shard", "offset").collect()
            for shard in range(SHARDS):
                offsets = sorted(row.offset for row in rows if row.shard == shard)
                assert offsets == list(range(len(offsets)))
            found = len(rows)
            assert found >= at_least
    finally:
        stop.set()
        writer.join()


def test_a_bucket_without_a_node(spark: SparkSession, tmp_path: Path) -> None:
    url = (tmp_path / "bucket").as_uri()
    settings = {**QUICK, "FIRN_TIERING_URL": url}
    served = NodeProcess(tmp_path / "data", settings)
    served.start()
    try:
        make_topic(served.address, "numbers", SHARDS, {"tiering": "on"})
        send(served.address, "numbers", [numbered(index) for index in range(100)])
    finally:
        served.close()
    upload = [sys.executable, "-m", "firnmq", "tier", "upload", "--roll"]
    subprocess.run(
        [*upload, "--data", str(tmp_path / "data")],
        env={**os.environ, "FIRN_TIERING_URL": url},
        check=True,
        capture_output=True,
        timeout=120,
    )
    shutil.rmtree(tmp_path / "data")
    reader = spark.read.format("firn").options(store=url, topic="numbers")
    assert collected(reader.load()) == expected(range(100))
    assert collected(reader.option("tag", "t9").load()) == expected([9, 39, 69, 99])
