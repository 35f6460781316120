"""CreatePartitions by several clients at the same time."""

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
from tests.unit.brokers.kafka.stage import TOPIC, Stage, on_stage


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
