"""Reading goes on while a node rolls, seals, tiers and drops what is being read."""

from __future__ import annotations

import random
import threading
import time

import msgspec
import pytest

from firnmq.lake.plans.plan import Wanted
from firnmq.lake.plans.splits import split_plan
from firnmq.lake.reading.reader import read_split
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.lake_plan.topics import TIMEOUT_S, NodeTopic, numbers

MOVING = {"segment.bytes": 6_000, "tiering": "on", "local.retention.bytes": 0}
WRITTEN = 8_100
STEP = 300


class Writer(threading.Thread):
    """Writes until it is through; `count` is what is certain to be there."""

    def __init__(self, topic: NodeTopic) -> None:
        super().__init__()
        self._topic = topic
        self.count = 0
        self.start()

    def run(self) -> None:
        while self.count < WRITTEN:
            self._topic.fill(self.count, STEP)
            self.count += STEP


def wait_until_cold(topic: NodeTopic) -> None:
    """Until every sealed segment is only in the store."""
    deadline = time.monotonic() + TIMEOUT_S
    while any(each["is_local"] for each in topic.segments() if each["state"] != "active"):
        assert time.monotonic() < deadline, topic.segments()
        time.sleep(0.05)


@pytest.mark.slow
def test_every_read_is_complete_whatever_moves(node: NodeProcess) -> None:
    """1. A writer fills segments of a few kilobytes, which are uploaded and dropped at once.
    2. At the same time plans are made, and read at once or late, in large and small splits.
    3. Each gives every record from the first on, once and in order, to where the plan ends.
    """
    topic = NodeTopic(node, MOVING)
    writer = Writer(topic)
    rng = random.Random(3)
    reads = 0
    kept = []
    try:
        while writer.is_alive() or reads < 5:
            certain = writer.count
            plan = topic.plan()
            assert plan.shards[0].end_offset >= certain
            if rng.random() < 0.3:
                kept.append(plan)
            found = numbers(topic.read(plan=plan, target_bytes=rng.choice((1, 50_000, 10**9))))
            assert found == list(range(plan.shards[0].end_offset))
            reads += 1
    finally:
        writer.join()
    wait_until_cold(topic)
    for plan in kept:
        assert numbers(topic.read(plan=plan)) == list(range(plan.shards[0].end_offset))
    wanted = Wanted(keys=(b"k7",))
    assert numbers(topic.read(wanted)) == list(range(7, WRITTEN, 10))


def test_a_reader_that_stays_behind(node: NodeProcess) -> None:
    """1. A split is opened while everything is in files of the node.
    2. Everything is uploaded and dropped there.
    3. The reader goes on to the end: from what it has open, from the store, and from the node.
    """
    options = {**MOVING, "tiering.upload.delay.ms": 3_600_000}
    topic = NodeTopic(node, options)
    topic.fill(0, 3000)
    plan = topic.plan()
    assert all(each.path is not None for each in plan.shards[0].segments)
    (split,) = split_plan(plan)
    reader = read_split(split, options=topic.options)
    first = next(reader)
    topic.call(
        "PATCH",
        f"/v1/topics/{topic.name}/config",
        {"options": {"tiering.upload.delay.ms": 0}},
    )
    topic.call("POST", "/v1/tier/upload", {"topic": topic.name})
    wait_until_cold(topic)
    found = [first, *reader]
    assert sum(batch.num_rows for batch in found) == 3000
    assert numbers(topic.read(plan=plan)) == list(range(3000))
    now = topic.plan()
    assert [each.path is None for each in now.shards[0].segments].count(False) <= 1
    assert numbers(topic.read(plan=now)) == list(range(3000))
    # And without a way to the store, all of it from the node.
    blind = msgspec.structs.replace(now, store=None, machine="another")
    assert numbers(topic.read(plan=blind)) == list(range(3000))


def test_compaction_under_a_reader(node: NodeProcess) -> None:
    """A plan of segments that were compacted since gives at least the newest of every key, and
    nothing that was never there."""
    topic = NodeTopic(
        node,
        {
            "segment.bytes": 3_000,
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": 0,
        },
    )
    topic.fill(0, 1000)
    plan = topic.plan()
    deadline = time.monotonic() + TIMEOUT_S
    while not any(each["compacted_ms"] for each in topic.segments()):
        assert time.monotonic() < deadline, topic.segments()
        time.sleep(0.1)
    for each in (plan, topic.plan()):
        found = numbers(topic.read(plan=each))
        assert found == sorted(set(found))
        assert set(range(990, 1000)) <= set(found)
    assert len(numbers(topic.read())) < 500
