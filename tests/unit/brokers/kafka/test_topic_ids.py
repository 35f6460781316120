"""Topics by id: what later versions of Produce, Fetch, OffsetCommit and OffsetFetch have."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from firnmq.brokers.kafka.protocol import ApiKey, ErrorCode, Message
from firnmq.brokers.kafka.protocol.messages import groups, offsets, produce_fetch
from firnmq.record import NewRecord, encode
from tests.unit.brokers.kafka.stage import TOPIC, Stage, on_stage, values_of

UNKNOWN = UUID(int=12345)


def batch(value: bytes) -> bytes:
    return bytes(encode([NewRecord(value=value)], now_ms=1))


def produce(topic_id: UUID, value: bytes = b"v", version: int = 13) -> Message:
    data = produce_fetch.PartitionProduceData(index=0, records=batch(value))
    topic = produce_fetch.TopicProduceData(topic_id=topic_id, partition_data=[data])
    return produce_fetch.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])


def fetch(*topic_ids: UUID, offset: int = 0) -> Message:
    wanted = produce_fetch.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1_000_000
    )
    return produce_fetch.FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        topics=[
            produce_fetch.FetchTopic(topic_id=topic_id, partitions=[wanted])
            for topic_id in topic_ids
        ],
    )


async def ask(stage: Stage, api_key: ApiKey, request: Message, version: int) -> Any:
    stage.feed(stage.request(1, api_key, request, version))
    ((_, answer),) = await stage.answers(1)
    return answer


async def id_of(stage: Stage) -> UUID:
    await stage.create()
    return UUID(stage.storage.topic(TOPIC).topic_id)


def test_records_are_produced_and_fetched_by_id(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        topic_id = await id_of(stage)
        for number in range(3):  # From the second on the request is like the one before it.
            answer = await ask(stage, ApiKey.PRODUCE, produce(topic_id, b"%d" % number), 13)
            (topic,) = answer.responses
            (partition,) = topic.partition_responses
            assert (topic.topic_id, partition.error_code) == (topic_id, 0)
            assert partition.base_offset == number
        assert stage.connection.produce_route is not None
        assert await values_of(stage) == [b"0", b"1", b"2"]
        for version in (13, 15, 18, 18):
            answer = await ask(stage, ApiKey.FETCH, fetch(topic_id, offset=1), version)
            (found,) = answer.responses
            assert found.topic_id == topic_id
            assert found.partitions[0].high_watermark == 3
            assert b"2" in bytes(found.partitions[0].records)
        assert stage.connection.fetch_route is not None

    on_stage(tmp_path, act)


@pytest.mark.parametrize("version", [13, 18])
def test_an_id_that_no_topic_has_is_told_of(version: int, tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        topic_id = await id_of(stage)
        answer = await ask(stage, ApiKey.FETCH, fetch(UNKNOWN, topic_id, UUID(int=9)), version)
        codes = {each.topic_id: each.partitions[0].error_code for each in answer.responses}
        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        assert codes == {UNKNOWN: unknown, topic_id: 0, UUID(int=9): unknown}
        answer = await ask(stage, ApiKey.PRODUCE, produce(UNKNOWN), 13)
        assert answer.responses[0].topic_id == UNKNOWN
        assert answer.responses[0].partition_responses[0].error_code == unknown
        # The fast path knows the topic, and then it is deleted.
        await ask(stage, ApiKey.PRODUCE, produce(topic_id), 13)
        await stage.storage.manager.delete_topic(TOPIC)
        answer = await ask(stage, ApiKey.PRODUCE, produce(topic_id), 13)
        assert answer.responses[0].partition_responses[0].error_code == unknown

    on_stage(tmp_path, act)


def test_offsets_are_committed_and_fetched_by_id(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        topic_id = await id_of(stage)
        part = offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        request = offsets.OffsetCommitRequest(
            group_id="g",
            topics=[
                offsets.OffsetCommitRequestTopic(topic_id=each, partitions=[part])
                for each in (topic_id, UNKNOWN)
            ],
        )
        answer = await ask(stage, ApiKey.OFFSET_COMMIT, request, 10)
        codes = {each.topic_id: each.partitions[0].error_code for each in answer.topics}
        assert codes == {topic_id: 0, UNKNOWN: ErrorCode.UNKNOWN_TOPIC_ID}
        named = [
            offsets.OffsetFetchRequestTopic(topic_id=each, partition_indexes=[0])
            for each in (topic_id, UNKNOWN)
        ]
        for wanted in (named, None):
            group = offsets.OffsetFetchRequestGroup(group_id="g", topics=wanted)
            answer = await ask(
                stage, ApiKey.OFFSET_FETCH, offsets.OffsetFetchRequest(groups=[group]), 10
            )
            (found,) = answer.groups
            assert found.topics[0].topic_id == topic_id
            assert found.topics[0].partitions[0].committed_offset == 7
            if wanted is not None:
                assert found.topics[1].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    on_stage(tmp_path, act)


def test_groups_are_listed_by_type_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    async def act(stage: Stage) -> None:
        topic_id = await id_of(stage)
        part = offsets.OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        topic = offsets.OffsetCommitRequestTopic(topic_id=topic_id, partitions=[part])
        commit = offsets.OffsetCommitRequest(group_id="g", topics=[topic])
        await ask(stage, ApiKey.OFFSET_COMMIT, commit, 10)
        for types, count in ((["Classic"], 1), (["consumer"], 0), ([], 1)):
            request = groups.ListGroupsRequest(types_filter=types)
            answer = await ask(stage, ApiKey.LIST_GROUPS, request, 5)
            assert [each.group_type for each in answer.groups] == ["classic"] * count
        request = groups.DescribeGroupsRequest(
            groups=["g", "none"], include_authorized_operations=True
        )
        for version, code in ((5, ErrorCode.NONE), (6, ErrorCode.GROUP_ID_NOT_FOUND)):
            answer = await ask(stage, ApiKey.DESCRIBE_GROUPS, request, version)
            there, missing = answer.groups
            assert (there.error_code, there.group_state) == (0, "Empty")
            assert there.authorized_operations & (1 << 3)
            assert (missing.error_code, missing.group_state) == (code, "Dead")

    on_stage(tmp_path, act)
