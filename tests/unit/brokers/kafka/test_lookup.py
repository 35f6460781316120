"""Where records are, and by what topics are known: the questions that clients ask rarely."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.handlers.lookup import LookupHandler
from firnmq.brokers.kafka.handlers.metadata import MetadataHandler
from firnmq.brokers.kafka.handlers.topics import TopicHandler
from firnmq.brokers.kafka.nodes import OneNode
from firnmq.brokers.kafka.protocol import ZERO_UUID, ErrorCode
from firnmq.brokers.kafka.protocol.messages.admin import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from firnmq.brokers.kafka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.net.address import Address
from firnmq.brokers.net.loop_turns import Turns
from firnmq.config import StorageType, TopicConfig
from firnmq.record import NewRecord, encode
from firnmq.record.batch import ATTRIBUTE_TRANSACTIONAL, parse_header
from firnmq.record.rewrite import with_header
from firnmq.server import LocalStore
from tests.unit.brokers.kafka.stage import append_to

NEWEST = -3
READ_COMMITTED = 1


class Scene:
    """A topic with one partition."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self.storage = KafkaStorage(store.manager)
        self.lookup = LookupHandler(self.storage, Turns())

    @property
    def shard(self) -> str:
        return self.storage.shard("t", 0)

    async def produce(self, *timestamps: int, producer: int | None = None) -> None:
        batch = encode([NewRecord(value=b"v", timestamp_ms=each) for each in timestamps], now_ms=1)
        if producer is not None:
            header = parse_header(batch)._replace(
                producer_id=producer,
                producer_epoch=0,
                base_sequence=0,
                attributes=ATTRIBUTE_TRANSACTIONAL,
            )
            batch = with_header(batch, header)
        await append_to(self.storage, "t", 0, batch)

    async def newest(self, *, isolation_level: int = 0) -> tuple[int, int]:
        wanted = ListOffsetsPartition(partition_index=0, timestamp=NEWEST)
        response = await self.lookup.list_offsets(
            ListOffsetsRequest(
                isolation_level=isolation_level,
                topics=[ListOffsetsTopic(name="t", partitions=[wanted])],
            ),
            7,
        )
        (found,) = response.topics[0].partitions
        assert found.error_code == ErrorCode.NONE
        return found.offset, found.timestamp


@pytest.fixture(params=[each.value for each in StorageType])
async def scene(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    store = LocalStore(tmp_path, background=False)
    await store.manager.create_topic("t", 1, TopicConfig(storage_type=request.param))
    yield Scene(store)
    store.close()


async def test_the_newest_record_is_found_where_the_newest_of_all_is_gone(scene: Scene) -> None:
    assert await scene.newest() == (-1, -1)
    engine = scene.store.engines[scene.storage.topic("t").config.storage_type]
    await scene.produce(5, 900, 7)  # 0 to 2
    engine.roll(scene.shard)
    await scene.produce(30, 40, 40)  # 3 to 5
    engine.roll(scene.shard)
    await scene.produce(20, 50, 10)  # 6 to 8
    assert await scene.newest() == (1, 900)
    # 1. Deleted by offset; the segment's description still has its timestamp.
    engine.delete_by_offset(scene.shard, [1])
    assert await scene.newest() == (7, 50)
    engine.delete_by_offset(scene.shard, [7])
    assert await scene.newest() == (4, 40)
    # 2. Left behind by the start of the log.
    engine.delete_records_before(scene.shard, 6)
    assert await scene.newest() == (6, 20)
    engine.delete_by_offset(scene.shard, [6, 8])
    assert await scene.newest() == (-1, -1)


async def test_an_open_transaction_is_not_the_newest_for_committed_reads(scene: Scene) -> None:
    await scene.produce(10, 20)
    await scene.produce(99, producer=7)
    assert await scene.newest() == (2, 99)
    assert await scene.newest(isolation_level=READ_COMMITTED) == (1, 20)


async def test_records_without_a_timestamp_have_a_newest_too(scene: Scene) -> None:
    batch = encode([NewRecord(value=b"v")], now_ms=0)
    header = parse_header(batch)._replace(base_timestamp=-1, max_timestamp=-1)
    await append_to(scene.storage, "t", 0, with_header(batch, header))
    assert await scene.newest() == (0, -1)


@pytest.mark.parametrize(
    ("offset", "code", "low"),
    [
        (-2, ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        (-(2**63), ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        (4, ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        (-1, ErrorCode.NONE, 3),
        (2, ErrorCode.NONE, 2),
    ],
)
async def test_records_are_deleted_before_offsets_that_there_are(
    scene: Scene, offset: int, code: ErrorCode, low: int
) -> None:
    await scene.produce(1, 2, 3)
    wanted = DeleteRecordsPartition(partition_index=0, offset=offset)
    response = await TopicHandler(scene.storage, KafkaConfig(), Turns()).delete_records(
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="t", partitions=[wanted])], timeout_ms=1_000
        )
    )
    (found,) = response.topics[0].partitions
    assert (found.error_code, found.low_watermark) == (code, low)
    assert (await scene.storage.bounds("t", 0))[0] == max(low, 0)


@pytest.mark.parametrize(
    ("current", "asked", "answer"),
    [
        (-1, 0, (ErrorCode.NONE, 0, 3)),
        (0, 0, (ErrorCode.NONE, 0, 3)),
        (0, -1, (ErrorCode.NONE, -1, -1)),
        (-1, 5, (ErrorCode.NONE, -1, -1)),
        (1, 0, (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)),
    ],
)
async def test_the_end_of_an_epoch(
    scene: Scene, current: int, asked: int, answer: tuple[ErrorCode, int, int]
) -> None:
    await scene.produce(1, 2, 3)
    wanted = OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=asked)
    response = await scene.lookup.offset_for_leader_epoch(
        OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=[wanted])])
    )
    (found,) = response.topics[0].partitions
    assert (found.error_code, found.leader_epoch, found.end_offset) == answer


async def test_the_leader_epoch_of_a_question_for_offsets_is_judged(scene: Scene) -> None:
    codes = []
    for epoch in (-1, 0, 1):
        wanted = ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=epoch)
        response = await scene.lookup.list_offsets(
            ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[wanted])]), 7
        )
        codes.append(response.topics[0].partitions[0].error_code)
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_LEADER_EPOCH]


@pytest.mark.parametrize("timestamp", [-4, -5, -6, -(2**63)])
async def test_times_of_newer_versions_are_refused(scene: Scene, timestamp: int) -> None:
    await scene.produce(10, 20)
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[wanted])])
    (found,) = (await scene.lookup.list_offsets(request, 7)).topics[0].partitions
    assert (found.error_code, found.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)


@pytest.mark.parametrize(("timestamp", "since", "offset"), [(-4, 8, 0), (-5, 9, -1), (-6, 11, -1)])
async def test_without_an_object_store_all_is_on_the_node(
    scene: Scene, timestamp: int, since: int, offset: int
) -> None:
    await scene.produce(10, 20)
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[wanted])])
    for version, code, found_offset in (
        (since - 1, ErrorCode.UNSUPPORTED_VERSION, -1),
        (since, ErrorCode.NONE, offset),
        (11, ErrorCode.NONE, offset),
    ):
        (found,) = (await scene.lookup.list_offsets(request, version)).topics[0].partitions
        assert (found.error_code, found.offset) == (code, found_offset)


@pytest.mark.parametrize("name", [None, ""])
async def test_a_topic_is_found_by_its_id(scene: Scene, name: str | None) -> None:
    nodes = OneNode(1, "firn", Address("127.0.0.1", 1))
    metadata = MetadataHandler(scene.storage, KafkaConfig(), nodes, Turns())
    topic_id = UUID(scene.storage.topic("t").topic_id)

    async def asked(wanted: UUID) -> tuple[int, str | None, UUID]:
        request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=wanted, name=name)])
        (found,) = (await metadata.metadata(request, 12)).topics
        return found.error_code, found.name, found.topic_id

    assert await asked(topic_id) == (ErrorCode.NONE, "t", topic_id)
    other = UUID(int=topic_id.int ^ 1)
    assert await asked(other) == (ErrorCode.UNKNOWN_TOPIC_ID, None, other)
    code, _, _ = await asked(ZERO_UUID)
    assert code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_TOPIC_EXCEPTION)
