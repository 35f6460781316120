"""What becomes part of a transaction by being used: partitions and groups, in later versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firnmq.brokers.kafka.protocol import ApiKey, ErrorCode, Message
from firnmq.brokers.kafka.protocol.messages import offsets, produce_fetch, transactions
from firnmq.record import NewRecord, encode, parse_header, with_header
from firnmq.record.batch import ATTRIBUTE_TRANSACTIONAL
from tests.unit.brokers.kafka.stage import TOPIC, Stage, on_stage

ID = "payments"


async def ask(stage: Stage, api_key: ApiKey, request: Message, version: int) -> Any:
    stage.feed(stage.request(1, api_key, request, version))
    ((_, answer),) = await stage.answers(1)
    return answer


async def begun(stage: Stage) -> tuple[int, int]:
    request = transactions.InitProducerIdRequest(transactional_id=ID, transaction_timeout_ms=60_000)
    answer = await ask(stage, ApiKey.INIT_PRODUCER_ID, request, 5)
    assert answer.error_code == 0
    return answer.producer_id, answer.producer_epoch


async def produced(stage: Stage, producer: tuple[int, int], version: int, sequence: int = 0) -> int:
    """The error code."""
    batch = bytearray(
        encode(
            [NewRecord(value=b"v")],
            now_ms=1,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
        )
    )
    data = produce_fetch.PartitionProduceData(index=0, records=transactional(batch))
    topic = produce_fetch.TopicProduceData(
        name=TOPIC, topic_id=stage.storage.id_of(TOPIC), partition_data=[data]
    )
    request = produce_fetch.ProduceRequest(
        transactional_id=ID, acks=-1, timeout_ms=10_000, topic_data=[topic]
    )
    answer = await ask(stage, ApiKey.PRODUCE, request, version)
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


def transactional(batch: bytearray) -> bytearray:
    header = parse_header(batch)
    return with_header(
        batch, header._replace(attributes=header.attributes | ATTRIBUTE_TRANSACTIONAL)
    )


async def committed(stage: Stage, producer: tuple[int, int], version: int) -> int:
    part = transactions.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=7)
    topic = transactions.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[part])
    request = transactions.TxnOffsetCommitRequest(
        transactional_id=ID,
        group_id="g",
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[topic],
    )
    answer = await ask(stage, ApiKey.TXN_OFFSET_COMMIT, request, version)
    code: int = answer.topics[0].partitions[0].error_code
    return code


async def stable_offset(stage: Stage) -> int:
    offset: int = await stage.storage.stable_offset(TOPIC, 0)
    return offset


@pytest.mark.parametrize("version", [12, 13])
def test_a_partition_is_added_by_its_first_batch(version: int, tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        producer = await begun(stage)
        assert await produced(stage, producer, version) == 0
        assert await produced(stage, producer, version, sequence=1) == 0
        assert await stable_offset(stage) == 0
        assert await committed(stage, producer, 5) == 0
        end = transactions.EndTxnRequest(
            transactional_id=ID, producer_id=producer[0], producer_epoch=producer[1], committed=True
        )
        assert (await ask(stage, ApiKey.END_TXN, end, 4)).error_code == 0
        assert await stable_offset(stage) == 3  # The marker counts too.
        group = offsets.OffsetFetchRequestGroup(group_id="g", topics=None)
        fetched = await ask(
            stage, ApiKey.OFFSET_FETCH, offsets.OffsetFetchRequest(groups=[group]), 9
        )
        assert fetched.groups[0].topics[0].partitions[0].committed_offset == 7

    on_stage(tmp_path, act)


def test_older_versions_must_add_and_are_told_in_words_that_they_know(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        producer = await begun(stage)
        assert await produced(stage, producer, 10) == ErrorCode.INVALID_TXN_STATE
        assert await produced(stage, producer, 11) == ErrorCode.TRANSACTION_ABORTABLE
        assert await committed(stage, producer, 3) == ErrorCode.INVALID_TXN_STATE
        assert await committed(stage, producer, 4) == ErrorCode.TRANSACTION_ABORTABLE
        assert await stable_offset(stage) == 0

    on_stage(tmp_path, act)


@pytest.mark.parametrize("version", [12, 13])
def test_nothing_is_added_for_a_producer_that_was_replaced(version: int, tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        await stage.create()
        before = await begun(stage)
        await begun(stage)
        assert await produced(stage, before, version) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await committed(stage, before, 5) == ErrorCode.INVALID_PRODUCER_EPOCH

    on_stage(tmp_path, act)
