"""ListOffsets and OffsetForLeaderEpoch: where records are."""

from __future__ import annotations

from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderPartitionResult,
    OffsetForLeaderTopicResult,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.errors import FirnError

_LATEST, _EARLIEST, _NEWEST_TIMESTAMP = -1, -2, -3
LEADER_EPOCH = 0
"""A single node has always been the leader."""
READ_COMMITTED = 1
"""The isolation level of those who want to see no more than what is certain."""


class LookupHandler:
    def __init__(self, storage: KafkaStorage) -> None:
        self._storage = storage

    async def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        topics = []
        for topic in request.topics:
            committed = request.isolation_level == READ_COMMITTED
            partitions = [
                await self._list(topic.name, wanted, committed) for wanted in topic.partitions
            ]
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        return ListOffsetsResponse(topics=topics)

    async def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            partitions = [await self._epoch(topic.topic, wanted) for wanted in topic.partitions]
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
        return OffsetForLeaderEpochResponse(topics=topics)

    async def _list(
        self, name: str, wanted: ListOffsetsPartition, committed: bool
    ) -> ListOffsetsPartitionResponse:
        index = wanted.partition_index
        try:
            offset, timestamp = await self._find(name, index, wanted.timestamp, committed)
        except FirnError as error:
            return ListOffsetsPartitionResponse(partition_index=index, error_code=code_of(error))
        return ListOffsetsPartitionResponse(
            partition_index=index,
            offset=offset,
            timestamp=timestamp,
            leader_epoch=LEADER_EPOCH if offset >= 0 else -1,
        )

    async def _find(
        self, name: str, index: int, timestamp: int, committed: bool
    ) -> tuple[int, int]:
        start, end = await self._storage.bounds(name, index)
        if timestamp == _LATEST:
            return await self._storage.stable_offset(name, index) if committed else end, -1
        if timestamp == _EARLIEST:
            return start, -1
        if timestamp == _NEWEST_TIMESTAMP:
            timestamp = (await self._storage.status(name, index)).max_timestamp
        found = await self._storage.offset_at(name, index, timestamp, committed=committed)
        if found is None:
            return -1, -1
        return found, await self._storage.timestamp_of(name, index, found)

    async def _epoch(
        self, name: str, wanted: OffsetForLeaderPartition
    ) -> OffsetForLeaderPartitionResult:
        try:
            _, end = await self._storage.bounds(name, wanted.partition)
        except FirnError as error:
            return OffsetForLeaderPartitionResult(
                partition=wanted.partition, error_code=code_of(error)
            )
        if wanted.leader_epoch > LEADER_EPOCH:
            return OffsetForLeaderPartitionResult(
                partition=wanted.partition, error_code=ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        return OffsetForLeaderPartitionResult(
            partition=wanted.partition, leader_epoch=LEADER_EPOCH, end_offset=end
        )
