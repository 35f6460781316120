"""/metrics after real traffic: what was done is what is counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

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
