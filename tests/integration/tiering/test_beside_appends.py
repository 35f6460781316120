"""A store whose history is read from the object store while records are appended."""

import dataclasses
import threading
from pathlib import Path

from firnmq.config import TieringConfig
from firnmq.server import TopicHandle
from tests.integration.tiering.stage import TIERED_THERE, TOPIC, Stage

MIB = 1024 * 1024
VALUES = [bytes([number]) * 100_000 for number in range(1, 101)]


def paced_count(stage: Stage) -> int:
    assert stage.local.tier is not None
    return stage.local.tier.cold.statistics().paced_count


def append_until(topic: TopicHandle, stop: threading.Event, is_begun: threading.Event) -> None:
    while not stop.is_set():
        topic.append([b"now"])
        is_begun.set()


def test_cold_reads_keep_a_pace_while_there_are_appends(
    tiering: TieringConfig, tmp_path: Path
) -> None:
    tiering = dataclasses.replace(tiering, read_bytes_per_s_beside_appends=20 * MIB)
    with Stage(tmp_path / "data", tiering) as stage:
        topic = stage.create(segment_bytes=64 * MIB, local_retention_ms=0)
        for value in VALUES:  # Each is a batch.
            topic.append([value])
        topic.roll()
        stage.create("now", tiering="off")
        stage.wait_for_cache()
        stage.work_until({TIERED_THERE})

    # 1. Without appends: the scan is not throttled.
    with Stage(tmp_path / "data", tiering) as stage:
        assert [record.value for record in stage.store.topic(TOPIC).records()] == VALUES
        assert paced_count(stage) == 0

    # 2. With appends: the same scan, from the disk cache, is throttled.
    with Stage(tmp_path / "data", tiering) as stage:
        stop, is_begun = threading.Event(), threading.Event()
        arguments = (stage.store.topic("now"), stop, is_begun)
        appender = threading.Thread(target=append_until, args=arguments)
        appender.start()
        try:
            assert is_begun.wait(60)
            assert [record.value for record in stage.store.topic(TOPIC).records()] == VALUES
        finally:
            stop.set()
            appender.join()
        assert paced_count(stage) > 0


def test_a_smaller_cache_than_before_is_no_obstacle(
    file_tiering: TieringConfig, tmp_path: Path
) -> None:
    """What is too much goes before there is anything that could be appended to."""
    with Stage(tmp_path / "data", file_tiering) as stage:
        topic = stage.create(segment_bytes=64 * MIB, local_retention_ms=0)
        topic.append(VALUES)
        topic.roll()
        stage.wait_for_cache()
        stage.work_until({TIERED_THERE})
        assert len(list(topic.records())) == len(VALUES)
        assert stage.local.tier is not None
        stage.local.tier.cold.flush()
        assert stage.local.tier.cold.statistics().disk_bytes > 5 * MIB
    smaller = dataclasses.replace(file_tiering, cache_bytes=2 * MIB)
    with Stage(tmp_path / "data", smaller) as stage:
        assert [record.value for record in stage.store.topic(TOPIC).records()] == VALUES
        assert stage.local.tier is not None
        assert stage.local.tier.cold.statistics().disk_bytes <= 2 * MIB
