"""A node whose storage fails says so everywhere, until the storage is whole again."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer

from firnmq.cli import main
from tests.integration.admin.serving import Served

CORRUPT_MESSAGE = 2
PATIENCE_S = 60


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_a_segment_that_cannot_be_read(tmp_path: Path, damage: str) -> None:
    """1. a sealed segment is damaged, 2. a consumer is told instead of hanging, 3. the log, the
    metrics, readiness, the status and the topic's description say so, 4. the file comes back."""
    data = tmp_path / "data"
    node = Served(data, settings={"FIRN_HOUSEKEEPING_MS": "100", "FIRN_STATE_SYNC_MS": "50"})
    try:
        options = {"storage.type": "EngineSegment", "segment.bytes": 2048}
        made = node.call("POST", "/v1/topics", {"topic": "orders", "options": options})
        assert made.status == 200, made
        for number in range(10):
            records = [{"value": f"{number}-{'x' * 900}"}]
            assert node.call("POST", "/v1/topics/orders/records", {"records": records}).status < 300
        assert node.call("GET", "/health/ready").status == 200
    finally:
        node.stop()
    file = sorted((data / "segments").glob("*/*.log"))[0]
    whole = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    node = Served(data, settings={"FIRN_HOUSEKEEPING_MS": "100", "FIRN_STATE_SYNC_MS": "50"})
    try:
        assert consumer_error(node) == CORRUPT_MESSAGE
        check_told(node, file)
        file.write_bytes(whole)
        node.wait_for_log(lambda line: "segment_unreadable_over" in line)
        assert node.call("GET", "/health/ready").document == {"status": "ready"}
        assert node.metric("firn_shards_unreadable") == 0
        assert node.get("/v1/node")["problems"] == []
        told = [line for line in node.log if "segment_unreadable" in line]
        assert len(told) == 2, told
    finally:
        node.stop()


def consumer_error(node: Served) -> int:
    """The error that a consumer's application sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.kafka,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["orders"])
    try:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None:
                error = message.error()
                assert error is not None, "a damaged record was given out"
                return int(error.code())
        raise AssertionError("the consumer was told nothing")
    finally:
        consumer.close()


def check_told(node: Served, file: Path) -> None:
    node.wait_for_log(lambda line: "segment_unreadable" in line and "orders" in line)
    ready = node.call("GET", "/health/ready")
    assert ready.status == 503
    assert ready.document["status"] == "failing"
    assert "segment_unreadable: 1" in ready.document["reasons"][0]
    assert "orders" not in ready.raw.decode(), "readiness needs no token and names nothing"
    assert node.metric("firn_shards_unreadable") == 1
    assert node.metric("firn_shards_failed") == 0
    assert node.metric("firn_disk_full") == 0
    assert node.metric("firn_disk_free_bytes") > 0
    (problem,) = node.get("/v1/node")["problems"]
    assert problem["subject"] == "shard 0 of topic 'orders'"
    assert file.name in problem["reason"]
    run = CliRunner(env={"FIRN_NODE": node.url})
    shown = run.invoke(main, ["status"], color=True).output
    assert "\x1b[31m" in shown
    assert file.name in shown
    described = run.invoke(main, ["topic", "describe", "orders", "--json"]).output
    (shard,) = json.loads(described)["shards"]
    assert file.name in shard["failure"]
