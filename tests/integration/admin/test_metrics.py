"""/metrics after real traffic: what was done is what is counted."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.documents import ROOT
from tests.integration.admin.serving import TIMEOUT_S, Served


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not what():
        assert time.monotonic() < deadline


def test_traffic_is_counted(node: Served, topic: str) -> None:
    # 1. A hundred records, each request waiting for its sync.
    producer = Producer({"bootstrap.servers": node.kafka})
    for number in range(100):
        producer.produce(topic, b"v%d" % number, partition=number % 2)
    assert producer.flush(60) == 0
    produced = node.metric('firn_requests_total{api="produce",error="NONE"}')
    assert produced >= 1
    assert node.metric('firn_request_seconds_count{api="produce"}') >= produced
    assert node.metric('firn_request_seconds_bucket{api="produce",le="+Inf"}') >= produced
    for name in ("received_bytes", "sent_bytes", "fsyncs", "turns", "turn_requests"):
        assert node.metric(f"firn_{name}_total") > 0, name
    assert node.metric("firn_connections") >= 1
    assert node.metric(f'firn_topic_bytes{{topic="{topic}"}}') > 0
    assert node.metric(f'firn_topic_segments{{topic="{topic}"}}') == 2
    assert node.metric(f'firn_topic_appended_records_total{{topic="{topic}"}}') == 100
    for shard in "01":
        assert node.metric(f'firn_shard_end_offset{{shard="{shard}",topic="{topic}"}}') == 50
        assert node.metric(f'firn_shard_start_offset{{shard="{shard}",topic="{topic}"}}') == 0
    assert "firn_build_info{" in node.call("GET", "/metrics").raw.decode()
    # 2. A group that has read some of them lags behind by the rest.
    consumer = Consumer({"bootstrap.servers": node.kafka, "group.id": f"g-{topic}"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 20)], asynchronous=False)
    consumer.close()
    labels = f'group="g-{topic}",shard="0",topic="{topic}"'
    line = next(
        line
        for line in node.call("GET", "/metrics").raw.decode().splitlines()
        if line.startswith("firn_group_lag{") and f'group="g-{topic}"' in line
    )
    assert line.endswith(" 30.0"), (labels, line)
    # 3. An error has its name.
    before = node.metric('firn_requests_total{api="produce",error="MESSAGE_TOO_LARGE"}')
    failures: list[KafkaError] = []
    large = Producer({"bootstrap.servers": node.kafka, "message.max.bytes": 20_000_000})
    large.produce(topic, b"x" * 17_000_000, on_delivery=lambda error, _: failures.append(error))
    large.flush(60)
    assert [error.code() for error in failures] == [KafkaError.MSG_SIZE_TOO_LARGE]
    after = node.metric('firn_requests_total{api="produce",error="MESSAGE_TOO_LARGE"}')
    assert after == before + 1


def test_compaction_is_counted_and_logged(tmp_path: Path) -> None:
    often = {"FIRN_HOUSEKEEPING_MS": "50", "FIRN_STATE_SYNC_MS": "50"}
    node = Served(tmp_path / "data", settings=often)
    try:
        options = {"cleanup.policy": "compact", "segment.ms": 100, "min.cleanable.dirty.ratio": 0.1}
        made = node.call("POST", "/v1/topics", {"topic": "t", "shard_count": 1, "options": options})
        assert made.status == 200, made
        producer = Producer({"bootstrap.servers": node.kafka})
        for number in range(100):
            producer.produce("t", b"v%d" % number, key=b"k%d" % (number % 4))
        assert producer.flush(60) == 0
        node.wait_for_log(lambda line: " compacted " in line)
        labels = 'storage_type="EngineSegment"'
        assert node.metric(f"firn_compactions_total{{{labels}}}") >= 1
        # A segment that was rolled early may have had nothing to lose, but not all of them.
        for what in ("records", "bytes"):
            taken, left = (
                f'firn_compaction_{what}_total{{direction="{way}",{labels}}}'
                for way in ("in", "out")
            )
            wait_until(lambda left=left, taken=taken: 0 < node.metric(left) < node.metric(taken))
        segments = node.get("/v1/topics/t/segments")
        assert segments[0]["compacted_ms"] is not None
    finally:
        assert node.stop() == 0


def test_nothing_stays_in_flight(node: Served, topic: str) -> None:
    producer = Producer({"bootstrap.servers": node.kafka})
    for _ in range(50):
        producer.produce(topic, b"x" * 100_000)
    assert producer.flush(60) == 0
    wait_until(lambda: node.metric("firn_bytes_in_flight") == 0)


def test_records_sent_to_clients_are_counted(tmp_path: Path) -> None:
    node = Served(tmp_path / "data")
    try:
        # 1. Ten records that are there, in one partition.
        producer = Producer({"bootstrap.servers": node.kafka})
        for number in range(10):
            producer.produce("t", b"v%d" % number, partition=0)
        assert producer.flush(60) == 0
        settings = {"bootstrap.servers": node.kafka, "group.id": "g"}
        consumer = Consumer({**settings, "enable.auto.commit": False})
        consumer.assign([TopicPartition("t", 0, 0)])
        assert len(_read(consumer, 10)) == 10
        assert node.metric("firn_fetched_records_total") == 10
        # 2. And those for which the client waits, whichever way they are answered.
        for number in range(20):
            producer.produce("t", b"w%d" % number, partition=0)
            assert producer.flush(60) == 0
            assert len(_read(consumer, 1)) == 1
        assert node.metric("firn_fetched_records_total") == 30
        consumer.close()
    finally:
        assert node.stop() == 0


def _read(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < count:
        assert time.monotonic() < deadline
        record = consumer.poll(1)
        if record is not None:
            assert record.error() is None
            found.append(record.value())
    return found


OF_REPLICAS = {
    *("firn_under_replicated_shards", "firn_offline_shards"),
    *("firn_lossy_segments", "firn_replica_lag_records"),
}


def test_the_dashboard_asks_for_metrics_that_there_are(tmp_path: Path) -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    asked += [each["query"] for each in dashboard["templating"]["list"]]
    wanted = set(re.findall(r"\b(?:firn|process)_\w+", "\n".join(asked)))
    assert len(wanted) > 20
    # Names that have labels are there once something has been counted under them.
    url = (tmp_path / "store").as_uri()
    node = Served(tmp_path / "data", settings={"FIRN_TIERING_URL": url})
    try:
        producer = Producer({"bootstrap.servers": node.kafka})
        producer.produce("t", b"one")
        assert producer.flush(60) == 0
        text = node.call("GET", "/metrics").raw.decode()
    finally:
        assert node.stop() == 0
    there = set(re.findall(r"^(\w+)[{ ]", text, re.MULTILINE))
    declared = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    wanted -= OF_REPLICAS  # Nodes of a cluster alone have these; test_failover asks for them.
    assert wanted <= there | {name for name, kind in declared.items() if kind != "histogram"}
