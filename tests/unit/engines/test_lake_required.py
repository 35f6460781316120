"""Retention waits for the lake where a topic asks for that, and for nobody where it does not."""

from pathlib import Path

import pytest

from firnmq.config import StorageType, TopicConfig
from firnmq.disk import run_blocking
from firnmq.errors import InvalidArgument, ShardNotFound
from tests.conformance.lab import Lab, numbered
from tests.conformance.tier_lab import TierLab
from tests.unit.lake.lake_lab import LakeTopic

WAITS = {"retention.ms": 1000, "lake.required": "true"}


def aged(topic: LakeTopic) -> None:
    """Three sealed segments of ten records, all too old."""
    for _ in range(3):
        topic.shard.append(*numbered(10))
        topic.shard.roll()
    topic.lab.clock.advance(2000)


def uid(topic: LakeTopic) -> int:
    return topic.shard.status.spec.uid


@pytest.mark.parametrize("storage_type", [StorageType.SEGMENT, StorageType.ROCKSDB])
def test_retention_follows_the_lake(tmp_path: Path, storage_type: StorageType) -> None:
    lab = Lab(tmp_path / "data", storage_type.value)
    topic = LakeTopic(lab, WAITS)
    careless = LakeTopic(lab, {"retention.ms": 1000})
    aged(topic)
    aged(careless)
    lab.store.housekeep()
    assert (topic.shard.start, careless.shard.start) == (0, 30)
    for end, start in ((9, 0), (10, 10), (25, 20), (12, 20), (30, 30)):
        reached = lab.store.shards.move_lake_end(uid(topic), end)
        assert reached == max(end, lab.store.shards.lake_end(uid(topic)))
        lab.store.housekeep()
        assert topic.shard.start == start
    lab.close()


def test_the_lake_is_remembered_and_forgotten_with_its_shard(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "data", StorageType.SEGMENT.value)
    topic = LakeTopic(lab, WAITS)
    number = uid(topic)
    assert lab.store.shards.lake_end(number) == 0
    assert lab.store.shards.move_lake_end(number, 7) == 7
    assert lab.store.shards.move_lake_end(number, 3) == 7
    lab.reopen()
    assert lab.store.shards.lake_end(number) == 7
    run_blocking(lab.store.manager.delete_topic(topic.topic.name))
    assert not lab.store.meta.range("lake/").entries
    with pytest.raises(ShardNotFound):
        lab.store.shards.move_lake_end(number, 9)
    lab.close()


def test_copies_in_the_object_store_wait_as_well(tmp_path: Path) -> None:
    lab = TierLab(tmp_path / "data", StorageType.SEGMENT.value)
    topic = LakeTopic(lab, {**WAITS, "tiering": "on", "local.retention.ms": 0})
    aged(topic)
    for _ in range(4):
        lab.move()
    assert [each.is_local for each in topic.shard.status.segments] == [False] * 3 + [True]
    lab.store.housekeep()
    assert topic.shard.start == 0
    lab.store.shards.move_lake_end(uid(topic), 20)
    lab.store.housekeep()
    assert topic.shard.start == 20
    for _ in range(4):
        lab.move()
    assert len(list(lab.objects.rglob("*.seg"))) == 1
    lab.close()


def test_a_memory_topic_that_drops_cannot_wait() -> None:
    memory = {"storage.type": "EngineMemory", "lake.required": "true"}
    with pytest.raises(InvalidArgument, match=r"memory\.overflow=spill"):
        TopicConfig.from_options(memory)
    assert TopicConfig.from_options({**memory, "memory.overflow": "spill"}).lake_required
