"""CreatePartitions: by several clients at the same time, and of several topics in a request."""

from __future__ import annotations

import asyncio
from pathlib import Path

from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.handlers.topics import TopicHandler
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.admin import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from firnmq.brokers.net.loop_turns import Turns
from firnmq.config import StoreConfig, TopicConfig
from tests.unit.brokers.kafka.stage import TOPIC, Stage, on_stage

SHARD_COUNT_MAX = 30


def test_partitions_that_another_client_made_meanwhile(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        handler = TopicHandler(stage.storage, KafkaConfig(), Turns())
        wanted = CreatePartitionsTopic(name=TOPIC, count=7)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=30_000)
        answers = await asyncio.gather(*(handler.create_partitions(request) for _ in range(3)))
        codes = sorted(answer.results[0].error_code for answer in answers)
        assert codes == [ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS, ErrorCode.INVALID_PARTITIONS]

    on_stage(tmp_path, act)


def test_partitions_that_are_only_validated_must_fit_together(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        manager = stage.storage.manager
        for name in "abc":
            await manager.create_topic(name, 2, TopicConfig())
        free_count = SHARD_COUNT_MAX - sum(
            each.shard_count for each in stage.storage.catalog.topics()
        )
        handler = TopicHandler(stage.storage, KafkaConfig(), Turns())

        async def grow(validate_only: bool, **counts: int) -> list[int]:
            topics = [CreatePartitionsTopic(name=name, count=counts[name]) for name in counts]
            request = CreatePartitionsRequest(
                topics=topics, timeout_ms=30_000, validate_only=validate_only
            )
            answer = await handler.create_partitions(request)
            return [each.error_code for each in answer.results]

        # All but one of the free partitions for `a`, then two for `b`: one too many.
        wanted = {"a": 2 + free_count - 1, "b": 4, "c": 3}
        expected = [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]
        assert await grow(True, **wanted) == expected
        assert [stage.storage.topic(name).shard_count for name in "abc"] == [2, 2, 2]
        assert await grow(False, **wanted) == expected

    on_stage(tmp_path, act, store=StoreConfig(shard_count_max=SHARD_COUNT_MAX))


def test_a_topic_that_a_request_names_twice_does_not_grow(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        before = stage.storage.topic(TOPIC).shard_count
        handler = TopicHandler(stage.storage, KafkaConfig(), Turns())
        topics = [CreatePartitionsTopic(name=TOPIC, count=before + more) for more in (1, 2)]
        request = CreatePartitionsRequest(topics=topics, timeout_ms=30_000)
        answer = await handler.create_partitions(request)
        assert [each.error_code for each in answer.results] == [ErrorCode.INVALID_REQUEST] * 2
        assert stage.storage.topic(TOPIC).shard_count == before

    on_stage(tmp_path, act)
