"""Table and log together: every record once, before, during and after conversions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from firnmq.lake.jobs.query import run_query, views_for
from firnmq.lake.jobs.sqltext import names_in
from firnmq.lake.plans.places import make_plan
from firnmq.lake.spark import register
from firnmq.lake.spark.filters import Limits
from firnmq.lake.spark.options import read_options
from firnmq.lake.spark.planning import plan_pieces, wanted_of
from firnmq.lake.tables.files.rows import HistorySplit
from tests.integration.kafka.nodes import QUICK, NodeProcess
from tests.integration.lake.lab import (
    NOON_MS,
    Sent,
    as_rows,
    new_topic,
    numbered,
    options_of,
    produce,
    sync_here,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 300


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    served = NodeProcess(tmp_path_factory.mktemp("history") / "data", QUICK)
    served.start()
    yield served
    served.close()


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def rows(spark: SparkSession, options: dict[str, str], **more: str) -> list[tuple[Any, ...]]:
    found = spark.read.format("firn").options(**options).options(**more).load()
    return as_rows(row.asDict(recursive=True) for row in found.collect())


def sent_rows(sent: list[Sent]) -> list[tuple[Any, ...]]:
    return sorted(each.row for each in sent)


def pieces(options: dict[str, str], **more: str) -> tuple[int, int]:
    """How many files of the table and how many segments of the log a read would open."""
    given = read_options({**options, **more})
    found = plan_pieces(given, wanted_of(given, Limits(wanted=given.wanted)))
    files = sum(len(each.files) for each in found if isinstance(each, HistorySplit))
    return files, sum(len(each.segments) for each in found if not isinstance(each, HistorySplit))


def test_before_and_after_conversions(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    topic = new_topic(node, segment_bytes=16384)
    options = options_of(node, topic, tmp_path)
    # 1. No table yet: everything comes from the log.
    odd = [
        {"partition": 0, "key": None, "value": b"no key", "timestamp": NOON_MS},
        {"partition": 0, "key": b"gone", "value": None, "timestamp": NOON_MS + 1},
        {
            "partition": 1,
            "key": b"k",
            "value": b"\xff\x00",
            "headers": [("tag", b"red"), ("h", None), ("tag", b"blue")],
            "timestamp": NOON_MS + 2,
        },
    ]
    sent = produce(node, topic, [*numbered(COUNT), *odd])
    assert rows(spark, options) == sent_rows(sent)
    # 2. All of it in the table: the log is not looked at.
    sync_here(options)
    files, segments = pieces(options)
    assert files > 0
    assert segments == 0
    assert rows(spark, options) == sent_rows(sent)
    # 3. More in the log, and the table twice as far.
    sent += produce(node, topic, numbered(COUNT, start=COUNT), **{"compression.type": "zstd"})
    assert rows(spark, options) == sent_rows(sent)
    assert pieces(options) != (files, 0)
    sync_here(options)
    assert rows(spark, options) == sent_rows(sent)
    # 4. Ranges over the border, by offset, time, key and tag.
    low, high = COUNT // 2 - 20, COUNT // 2 + 20
    offsets = rows(
        spark,
        options,
        startingOffsets=json.dumps({"0": low, "1": low}),
        endingOffsets=json.dumps({"0": high, "1": high}),
    )
    assert offsets == sent_rows([each for each in sent if low <= each.offset < high])
    since = NOON_MS + (COUNT + 7) * 60_000
    assert rows(spark, options, startingTimestamp=str(since)) == sent_rows(
        [each for each in sent if each.timestamp_ms >= since]
    )
    assert rows(spark, options, key="key-5") == sent_rows([e for e in sent if e.key == b"key-5"])
    assert rows(spark, options, tag="blue") == sent_rows(
        [each for each in sent if ("tag", b"blue") in each.headers]
    )
    assert pieces(options, key="key-5")[0] == 1
    # 5. Without the table only the log counts, which still has everything.
    assert pieces(options, table="never")[0] == 0
    assert rows(spark, options, table="never") == sent_rows(sent)


def test_what_the_log_has_dropped_is_read_from_the_table(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    topic = new_topic(node, shards=1)
    options = options_of(node, topic, tmp_path)
    sent = produce(node, topic, numbered(100, shards=1))
    sync_here(options)
    admin = AdminClient({"bootstrap.servers": node.address})
    for deleted in admin.delete_records([TopicPartition(topic, 0, 60)]).values():
        deleted.result(60)
    assert make_plan(options).shards[0].start_offset == 60
    sent += produce(node, topic, numbered(20, start=100, shards=1))
    assert rows(spark, options) == sent_rows(sent)
    assert rows(spark, options, startingOffsets='{"0": 50}') == sent_rows(sent)[50:]


@pytest.mark.streaming
def test_a_stream_begins_in_the_table_and_goes_on_in_the_log(
    spark: SparkSession, node: NodeProcess, tmp_path: Path
) -> None:
    topic = new_topic(node)
    options = options_of(node, topic, tmp_path)
    sent = produce(node, topic, numbered(100))
    sync_here(options)
    sent += produce(node, topic, numbered(50, start=100))
    stream = spark.readStream.format("firn").options(**options).load()
    query = (
        stream.writeStream.format("memory")
        .queryName("from_table")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = spark.table("from_table").collect()
    assert as_rows(row.asDict(recursive=True) for row in found) == sent_rows(sent)


def test_sql_over_both(spark: SparkSession, node: NodeProcess, tmp_path: Path) -> None:
    topic = new_topic(node, "sales")
    options = options_of(node, topic, tmp_path)
    produce(node, topic, numbered(100))
    sync_here(options)
    produce(node, topic, numbered(20, start=100))
    given = {name: value for name, value in options.items() if name != "topic"}
    one = run_query(spark, f"SELECT count(*) FROM `{topic}` WHERE shard = 1", given)
    assert one.collect()[0][0] == 60
    view = topic.replace(".", "_")
    twice = run_query(
        spark,
        f"SELECT (SELECT count(*) FROM {view} WHERE offset < 5) a, "
        f"(SELECT count(*) FROM {view} WHERE offset >= 50) b, (SELECT count(*) FROM {view}) c",
        given,
    )
    assert tuple(twice.collect()[0]) == (10, 20, 120)


@pytest.mark.streaming
def test_the_command(node: NodeProcess) -> None:
    topic = new_topic(node, "orders")
    produce(node, topic, numbered(10))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "firnmq", "lake", "sql", "--server", node.address, "--json"),
            *(
                "--master",
                "local[1]",
                f"SELECT shard, count(*) AS n, max(CAST(value AS STRING)) AS "
                f"newest FROM `{topic}` GROUP BY shard ORDER BY shard",
            ),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["shard"], line["n"]) for line in lines] == [(0, 5), (1, 5)]
    assert lines[1]["newest"].startswith("value 9")


def test_topics_are_found_in_a_query() -> None:
    query = """SELECT 'clicks' AS name /* orders */ FROM `web.clicks` c -- sales
    JOIN Users ON c.key = users.key"""
    assert {"web.clicks", "Users", "c"} <= names_in(query)
    assert not {"clicks", "orders", "sales"} & names_in(query)
    topics = ["clicks", "orders", "sales", "users", "web.clicks"]
    assert views_for(query, topics) == {"users": "users", "web.clicks": "web.clicks"}
