"""A topic that is deleted and made again: a recovery finds the one that is there."""

from pathlib import Path

from firnmq.config import TopicConfig
from firnmq.disk import run_blocking
from firnmq.server.tier import open_object_store
from firnmq.tiering.archive.recover import find_cluster
from tests.conformance.lab import Shard
from tests.conformance.tier_lab import TierLab

_CALLS_MAX = 60
"""More calls to the store than the mover makes here."""


def test_the_deleted_one_does_not_come_back_though_the_clock_was_set_back(tmp_path: Path) -> None:
    """Whatever call to the store is the last before the machine is lost."""
    lab = TierLab(tmp_path / "data", "EngineSegment")
    config = TopicConfig.from_options({"tiering": "on"})
    manager = lab.store.manager
    for value in (b"old", b"new"):
        topic = run_blocking(manager.create_topic("t", 1, config))
        shard = Shard(lab, topic.shard_name(0))
        shard.append_values(value)
        shard.roll()
        if value == b"old":
            lab.move()
            run_blocking(manager.delete_topic("t"))
            lab.clock.set_back(86_400_000)
    for calls in range(_CALLS_MAX):
        lab.faults.calls_left, lab.faults.has_failed = calls, False
        lab.move()
        lab.faults.calls_left = None
        found = find_cluster(open_object_store(lab._tiering), "lab", skip_gaps=True)
        if shard.status.segments[0].tier is not None and shard.status.segments[0].tier.is_done:
            assert [each.manifest.topic_id for each in found.topics] == [topic.topic_id]
            assert found.topics[0].shards[0].end_offset == 1
        if not lab.faults.has_failed:
            break
    else:
        raise AssertionError(f"the mover makes more than {_CALLS_MAX} calls")
    assert [each.manifest.topic_id for each in found.topics] == [topic.topic_id]
    lab.close()
