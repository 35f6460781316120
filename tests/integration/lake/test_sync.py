"""Records of real clients in the table: once, equal, for every reader."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from firnmq.lake.jobs.convert import Conversion, Task
from firnmq.lake.jobs.runner import SparkRunner
from firnmq.lake.jobs.sync import SyncDone, TopicSync
from firnmq.lake.plans.places import PlanNotDurable, PlanWarning, make_plan
from firnmq.lake.plans.plan import Wanted
from firnmq.lake.reading.marks import LogReplaced
from firnmq.lake.spark.columns import RECORD
from firnmq.lake.spark.options import read_options
from firnmq.lake.spark.planning import RecordsGone, StreamAhead, TopicReplaced
from firnmq.lake.spark.reading import PiecePartition
from firnmq.lake.spark.streaming import FirnStreamReader
from firnmq.lake.tables.catalogs.sqlite_peek import peek_mode
from firnmq.testing.seaweed import ACCESS_KEY, SECRET_KEY, SeaweedServer
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.lake.lab import (
    NOON_MS,
    InlineRunner,
    Sent,
    as_rows,
    files_of,
    new_topic,
    numbered,
    open_table,
    options_of,
    produce,
    rows_of,
    sync_here,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def every_kind(node: NodeProcess, topic: str) -> list[Sent]:
    """Each codec with everything a record may have or lack."""
    sent = []
    for number, codec in enumerate(CODECS):
        at = NOON_MS + number * 1_800_000
        kinds: list[dict[str, Any]] = [
            {"key": b"k", "value": b"v", "headers": [("tag", b"red"), ("trace", b"\x00\xff")]},
            {"key": None, "value": b"no key", "headers": [("tag", b"red"), ("tag", b"blue")]},
            {"key": b"gone", "value": None},
            {"key": None, "value": None, "headers": [("empty", b""), ("null", None)]},
            {"key": b"", "value": b""},
            {"key": bytes(range(256)), "value": bytes(range(256)) * 40},
        ]
        records = [
            {**kind, "partition": each % 2, "timestamp": at + each}
            for each, kind in enumerate(kinds)
        ]
        sent += produce(node, topic, records, **{"compression.type": codec})
    return sorted(sent)


def test_every_kind_of_record_is_there_once_for_every_reader(
    node: NodeProcess, spark: SparkSession
) -> None:
    """1. A client sends every kind of record with every codec. 2. Spark converts them.
    3. PyIceberg, Spark and DuckDB read what was sent, and still do after another sync."""
    topic = new_topic(node)
    options = options_of(node, topic)
    sent = every_kind(node, topic)
    done = sync_here(options, SparkRunner(spark), partition="hour")
    assert done.row_count == len(sent)
    expected = [each.row for each in sent]
    for _ in range(2):
        assert rows_of(options) == expected
        files = files_of(options)
        assert as_rows(row.asDict() for row in spark.read.parquet(*files).collect()) == expected
        found = duckdb.sql(f"FROM read_parquet({files!r})").to_arrow_table().to_pylist()
        assert as_rows(found) == expected
        assert sync_here(options, SparkRunner(spark)).rounds == 0


def test_only_what_is_committed_gets_into_the_table(node: NodeProcess) -> None:
    topic = new_topic(node, shards=1)
    options = options_of(node, topic)
    plain = produce(node, topic, [{"partition": 0, "value": b"plain", "timestamp": NOON_MS}])
    producer = Producer(
        {"bootstrap.servers": node.address, "transactional.id": f"t-{secrets.token_hex(4)}"}
    )
    producer.init_transactions(60)
    for value, is_kept in ((b"aborted", False), (b"kept", True)):
        producer.begin_transaction()
        producer.produce(topic, partition=0, value=value, timestamp=NOON_MS)
        producer.flush(60)
        if is_kept:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    producer.begin_transaction()
    producer.produce(topic, partition=0, value=b"open", timestamp=NOON_MS)
    producer.flush(60)
    sync_here(options)
    assert [row[4] for row in rows_of(options)] == [b"plain", b"kept"]
    producer.commit_transaction(60)
    sync_here(options)
    assert [row[4] for row in rows_of(options)] == [b"plain", b"kept", b"open"]
    assert plain[0].row in rows_of(options)


def test_hours_are_kept_apart_and_rounds_bounded(node: NodeProcess, tmp_path: Path) -> None:
    topic = new_topic(node, segment_bytes=4_096)
    options = options_of(node, topic, tmp_path / "lake")
    sent = produce(node, topic, numbered(300), **{"batch.num.messages": 10})
    done = sync_here(options, partition="hour", commit_bytes=6_000, split_bytes=3_000)
    assert done.rounds > 2
    assert rows_of(options) == [each.row for each in sent]
    catalog, table = open_table(options)
    with catalog:
        for task in table.iceberg.scan().plan_files():
            (hour,) = task.file.partition
            times = {
                each.row[2] // 3_600_000
                for each in sent
                if f"/{each.shard:05d}-" in task.file.file_path and each.row[2] // 3_600_000 == hour
            }
            assert times == {hour}


def test_sealed_only_leaves_the_active_segment(node: NodeProcess, tmp_path: Path) -> None:
    topic = new_topic(node, shards=1, segment_bytes=4_096)
    options = options_of(node, topic, tmp_path / "lake")
    sent = produce(node, topic, numbered(200, shards=1), **{"batch.num.messages": 10})
    sync_here(options, is_sealed_only=True)
    rows = rows_of(options)
    assert 0 < len(rows) < len(sent)
    assert rows == [each.row for each in sent][: len(rows)]
    sync_here(options)
    assert rows_of(options) == [each.row for each in sent]


def test_a_warehouse_in_a_bucket(
    node: NodeProcess, spark: SparkSession, seaweed: SeaweedServer, tmp_path: Path
) -> None:
    topic = new_topic(node)
    options = {
        **options_of(node, topic),
        "catalog": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"{seaweed.url}/{secrets.token_hex(8)}",
        "warehouse.endpoint": seaweed.endpoint,
        "warehouse.region": "us-east-1",
        "warehouse.access_key": ACCESS_KEY,
        "warehouse.secret_key": SECRET_KEY,
        "warehouse.allow_http": "true",
    }
    sent = every_kind(node, topic)
    sync_here(options, SparkRunner(spark), partition="hour")
    sent += produce(node, topic, numbered(40))
    sync_here(options, SparkRunner(spark))
    assert rows_of(options) == sorted(each.row for each in sent)
    place = make_plan(options, Wanted(shards=())).table
    assert place is not None
    assert peek_mode(place, topic, options) == "raw"


def delete_below(node: NodeProcess, topic: str, offset: int) -> None:
    place = TopicPartition(topic, 0, offset)
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.delete_records([place])[place].result(60)


def test_what_is_removed_after_the_plan_is_counted_as_missing(
    node: NodeProcess, tmp_path: Path
) -> None:
    """1. A round is planned. 2. Before its tasks read, the log's start moves, into a batch.
    3. What is left is in the table, and the sync tells how much is not."""
    topic = new_topic(node, shards=1, segment_bytes=4_096)
    options = options_of(node, topic, tmp_path / "lake")
    sent = produce(node, topic, numbered(200, shards=1), **{"batch.num.messages": 10})

    class SlowRunner(InlineRunner):
        def run(self, tasks: Sequence[Task]) -> list[Conversion]:
            elsewhere = [
                msgspec.structs.replace(
                    task, split=msgspec.structs.replace(task.split, machine="another")
                )
                for task in tasks
            ]
            delete_below(node, topic, 153)
            return super().run(elsewhere)

    done = sync_here(options, SlowRunner(), split_bytes=1_000)
    assert done.missing_count == 153
    assert done.ends == {0: 200}
    assert rows_of(options) == [each.row for each in sent[153:]]


@pytest.mark.parametrize("fails", [True, False])
def test_a_stream_does_not_pass_over_what_is_removed_after_its_plan(
    node: NodeProcess, fails: bool
) -> None:
    topic = new_topic(node, shards=1, segment_bytes=4_096)
    produce(node, topic, numbered(200, shards=1), **{"batch.num.messages": 10})
    given = {**options_of(node, topic), "failOnDataLoss": str(fails).lower(), "splitBytes": "1000"}
    reader = FirnStreamReader(read_options(given, is_stream=True), RECORD)
    begin, end = reader.initialOffset(), reader.latestOffset()
    parts = reader.partitions(begin, end)
    for part in parts:
        assert isinstance(part, PiecePartition)
        part.piece = msgspec.structs.replace(part.piece, machine="another")
    delete_below(node, topic, 150)

    def rows() -> int:
        return sum(batch.num_rows for part in parts for batch in reader.read(part))

    if fails:
        with pytest.raises(RecordsGone):
            rows()
    else:
        assert rows() == 50


def test_a_stream_that_is_beyond_the_log_is_told(tmp_path: Path) -> None:
    """A topic in memory starts empty with its node; its new records must not be taken for old."""
    node = NodeProcess(tmp_path / "data")
    node.start()
    try:
        topic = new_topic(node, shards=1, storage_type="EngineMemory")
        produce(node, topic, numbered(10, shards=1))
        options = read_options(options_of(node, topic), is_stream=True)
        reader = FirnStreamReader(options, RECORD)
        reader.partitions(reader.initialOffset(), reader.latestOffset())
        node.kill()
        node.start()
        produce(node, topic, numbered(5, start=100, shards=1))
        with pytest.raises(StreamAhead):
            reader.latestOffset()
    finally:
        node.close()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_stream_does_not_go_on_in_a_log_that_has_grown_again(
    tmp_path: Path, is_restarted: bool
) -> None:
    """1. A stream has read a topic in memory. 2. Its node is killed and gets other records, more
    than there were. 3. The stream refuses, also if it was restarted, with the batch that was
    planned and with the next; and goes on if it is told that this is no matter, or if its
    checkpoint has nothing to know the log by."""
    node = NodeProcess(tmp_path / "data")
    node.start()
    try:
        topic = new_topic(node, shards=2, storage_type="EngineMemory")
        produce(node, topic, numbered(10))
        given = options_of(node, topic)
        reader = FirnStreamReader(read_options(given, is_stream=True), RECORD)
        begin = reader.initialOffset()
        middle = reader.latestOffset()
        reader.partitions(begin, middle)
        produce(node, topic, numbered(10, start=10))
        end = reader.latestOffset()
        reader.partitions(middle, end)
        assert reader.latestOffset() == end
        node.kill()
        node.start()
        produce(node, topic, numbered(40, start=100))
        if is_restarted:
            reader = FirnStreamReader(read_options(given, is_stream=True), RECORD)
            with pytest.raises(LogReplaced):
                reader.partitions(middle, end)
            assert reader.partitions(end, end) == []
        with pytest.raises(LogReplaced, match="new checkpoint") as caught:
            reader.latestOffset()
        assert (caught.value.topic, caught.value.shard, caught.value.offset) == (topic, 0, 9)
        careless = {**given, "failOnDataLoss": "false"}
        for options, known in ((careless, end), (given, {**end, "last": {}})):
            reader = FirnStreamReader(read_options(options, is_stream=True), RECORD)
            reader.partitions(known, known)
            assert reader.latestOffset()["shards"] == {"0": 20, "1": 20}
    finally:
        node.close()


def test_a_topic_made_anew_while_a_stream_runs_is_told(node: NodeProcess) -> None:
    topic = new_topic(node, shards=1)
    produce(node, topic, numbered(10, shards=1))
    reader = FirnStreamReader(read_options(options_of(node, topic), is_stream=True), RECORD)
    reader.partitions(reader.initialOffset(), reader.latestOffset())
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.delete_topics([topic])[topic].result(60)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    produce(node, topic, numbered(20, start=100, shards=1))
    with pytest.raises(TopicReplaced, match="new checkpoint"):
        reader.latestOffset()


def test_a_stream_knows_a_log_by_what_is_before_markers_of_transactions(node: NodeProcess) -> None:
    topic = new_topic(node, shards=1)
    produce(node, topic, numbered(3, shards=1))
    producer = Producer({"bootstrap.servers": node.address, "transactional.id": topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"kept")
    producer.commit_transaction(60)
    producer.begin_transaction()
    producer.produce(topic, b"dropped")
    producer.flush(60)
    producer.abort_transaction(60)
    reader = FirnStreamReader(read_options(options_of(node, topic), is_stream=True), RECORD)
    end = reader.latestOffset()
    assert end["shards"] == {"0": 7}
    assert end["last"]["0"].startswith("3:")


def test_a_memory_topic_does_not_give_the_tables_offsets_again(tmp_path: Path) -> None:
    """1. A sync takes what a topic in memory has. 2. The node is killed; the topic is empty.
    3. New records are behind those in the table, and get into it."""
    node = NodeProcess(tmp_path / "data")
    node.start()
    try:
        topic = new_topic(node, shards=1, storage_type="EngineMemory")
        options = options_of(node, topic, tmp_path / "lake")
        sent = produce(node, topic, numbered(10, shards=1))
        sync_here(options)
        node.kill()
        node.start()
        later = produce(node, topic, numbered(15, start=100, shards=1))
        assert later[0].offset == 10
        sync_here(options_of(node, topic, tmp_path / "lake"))
        assert rows_of(options) == [each.row for each in (*sent, *later)]
    finally:
        node.close()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"durability": "os"}, "has durability=os"),
        ({"durability": "interval"}, "has durability=interval"),
        ({"storage_type": "EngineMemory"}, "is kept in memory"),
    ],
)
def test_without_the_http_listener_no_table_gets_what_a_log_can_lose(
    node: NodeProcess, tmp_path: Path, config: dict[str, str], said: str
) -> None:
    """1. Where the listener cannot be reached, a sync is refused and makes no table. 2. Readers get
    their plan. 3. With the listener there is nothing to refuse."""
    topic = new_topic(node, **config)
    options = options_of(node, topic, tmp_path / "lake")
    sent = produce(node, topic, numbered(10))
    alone = {**options, "admin": "127.0.0.1:1"}
    with pytest.raises(PlanNotDurable, match=said) as caught:
        sync_here(alone)
    assert "option admin" in str(caught.value)
    assert not (tmp_path / "lake").exists()
    with pytest.warns(PlanWarning):
        assert len(make_plan(alone).shards) == 2
    sync_here(options)
    assert rows_of(options) == [each.row for each in sent]


@pytest.mark.filterwarnings("ignore::firnmq.lake.plans.places.PlanWarning")
def test_without_the_http_listener_a_table_gets_what_is_durable(
    node: NodeProcess, tmp_path: Path
) -> None:
    topic = new_topic(node)
    options = {**options_of(node, topic, tmp_path / "lake"), "admin": "127.0.0.1:1"}
    sent = produce(node, topic, numbered(10))
    sync_here(options)
    sent += produce(node, topic, numbered(10, start=10))
    sync_here(options)
    assert rows_of(options) == sorted(each.row for each in sent)


@pytest.mark.parametrize("storage", ["EngineSegment", "EngineRocksDB"])
def test_a_node_with_an_older_copy_of_its_data_is_noticed(tmp_path: Path, storage: str) -> None:
    """1. A node's directory is copied, and then gets more, which a table has. 2. The copy takes its
    place, and gets other records, more than there were. 3. The sync refuses; the table is as it
    was."""
    node = NodeProcess(tmp_path / "data")
    node.start()
    try:
        topic = new_topic(node, shards=1, storage_type=storage)
        sent = produce(node, topic, numbered(10, shards=1))
        node.terminate()
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        node.start()
        sent += produce(node, topic, numbered(10, start=10, shards=1))
        options = options_of(node, topic, tmp_path / "lake")
        sync_here(options)
        node.kill()
        shutil.rmtree(tmp_path / "data")
        shutil.move(tmp_path / "copy", tmp_path / "data")
        node.start()
        produce(node, topic, numbered(30, start=500, shards=1))
        with pytest.raises(LogReplaced) as caught:
            sync_here(options)
        assert caught.value.offset == 19
        assert rows_of(options) == [each.row for each in sent]
    finally:
        node.close()


def test_following_takes_what_comes(node: NodeProcess, tmp_path: Path) -> None:
    """1. A sync follows. 2. Records come, twice. 3. Each time it has them soon; then it stops."""
    from threading import Event, Thread

    from firnmq.lake.jobs.sync import RoundDone, SyncSettings
    from firnmq.lake.plans.source import OptionsSource
    from tests.integration.lake.lab import InlineRunner

    topic = new_topic(node)
    options = options_of(node, topic, tmp_path / "lake")
    work = TopicSync(
        source=OptionsSource(options),
        runner=InlineRunner(),
        options=options,
        settings=SyncSettings(commit_interval_s=0.05, poll_s=0.05),
    )
    stop, caught_up = Event(), Event()
    total: list[SyncDone] = []
    row_count = 0

    def watch(done: RoundDone) -> None:
        nonlocal row_count
        row_count += done.row_count
        if row_count in (100, 150):
            caught_up.set()

    thread = Thread(target=lambda: total.append(work.follow(stop, watch)))
    thread.start()
    try:
        sent = produce(node, topic, numbered(100))
        assert caught_up.wait(120)
        caught_up.clear()
        sent += produce(node, topic, numbered(50, start=100))
        assert caught_up.wait(120)
    finally:
        stop.set()
        thread.join()
        work.close()
    assert total[0].row_count == 150
    assert rows_of(options) == sorted(each.row for each in sent)
