"""ListOffsets and OffsetForLeaderEpoch: where records are."""

from __future__ import annotations

import asyncio

from firnmq.brokers.kafka.failures import code_of_read
from firnmq.brokers.kafka.handlers.epochs import (
    FIRST_EPOCH,
    NO_EPOCH,
    EpochEnd,
    end_of_epoch,
    epoch_error,
    epoch_of,
)
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
from firnmq.brokers.net.loop_turns import Turns
from firnmq.engines.catalog.segments import SegmentState
from firnmq.errors import FirnError, StoreError, TimedOut

_LATEST, _EARLIEST, _NEWEST_TIMESTAMP = -1, -2, -3
_EARLIEST_LOCAL, _LATEST_TIERED, _EARLIEST_PENDING = -4, -5, -6
_FIRST_VERSIONS = {
    _NEWEST_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING: 11,
}
"""The versions from which on such questions can be asked."""
READ_COMMITTED = 1
"""The isolation level of clients that read committed records only."""


_STORE_WAIT_S = 20.0
"""For all cold partitions of a request together: less than the 30 s that clients wait."""


_COLD_LOOKUPS_MAX = 64
"""Cold partitions of a request that are looked up at the same time."""


class _Question:
    """One partition of a request; two of them are never the same, whatever they ask."""

    __slots__ = ("is_committed", "name", "version", "wanted")

    def __init__(
        self, name: str, wanted: ListOffsetsPartition, is_committed: bool, version: int
    ) -> None:
        self.name = name
        self.version = version
        self.wanted = wanted
        self.is_committed = is_committed


class LookupHandler:
    def __init__(self, storage: KafkaStorage, turns: Turns) -> None:
        self._turns = turns
        self._storage = storage

    async def list_offsets(self, request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        is_committed = request.isolation_level == READ_COMMITTED
        topics = []
        cold: list[tuple[_Question, list[ListOffsetsPartitionResponse], int]] = []
        async for topic in self._turns.over(request.topics):
            partitions: list[ListOffsetsPartitionResponse] = []
            async for wanted in self._turns.over(topic.partitions):
                question = _Question(topic.name, wanted, is_committed, version)
                if await self._needs_store(question):
                    cold.append((question, partitions, len(partitions)))
                    partitions.append(
                        ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
                    )
                else:
                    partitions.append(await self._list(question))
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        if cold:
            answers = await self._list_cold([question for question, _, _ in cold])
            for question, partitions, place in cold:
                partitions[place] = answers[question]
        return ListOffsetsResponse(topics=topics)

    async def offset_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        topics = []
        async for topic in self._turns.over(request.topics):
            partitions = [
                await self._epoch(topic.topic, wanted)
                async for wanted in self._turns.over(topic.partitions)
            ]
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=partitions))
        return OffsetForLeaderEpochResponse(topics=topics)

    async def _needs_store(self, question: _Question) -> bool:
        name, index = question.name, question.wanted.partition_index
        try:
            timestamp = question.wanted.timestamp
            if timestamp == _NEWEST_TIMESTAMP:
                timestamp = (await self._storage.status(name, index)).max_timestamp
            return timestamp >= 0 and await self._storage.finds_cold(name, index, timestamp)
        except FirnError:
            return False  # It is told with the answer.

    async def _list_cold(
        self, questions: list[_Question]
    ) -> dict[_Question, ListOffsetsPartitionResponse]:
        """Answers many at once. If the store cannot be used, or takes too long, the request does
        not wait for each: what has no answer yet gets an error on which clients ask again."""
        answers: dict[_Question, ListOffsetsPartitionResponse] = {}
        failure: FirnError | None = None

        left = iter(questions)

        async def ask() -> None:
            nonlocal failure
            for question in left:
                try:
                    answers[question] = await self._answer(question)
                except StoreError as error:
                    if failure is None:
                        failure = error
                        limit.reschedule(asyncio.get_running_loop().time())
                except FirnError as error:
                    answers[question] = _failed(question, error)

        try:
            async with asyncio.timeout(_STORE_WAIT_S) as limit, asyncio.TaskGroup() as group:
                for _ in range(min(len(questions), _COLD_LOOKUPS_MAX)):
                    group.create_task(ask())
        except TimeoutError:
            pass
        late = failure or TimedOut(f"the object store took longer than {_STORE_WAIT_S:g} s")
        return {each: answers.get(each) or _failed(each, late) for each in questions}

    async def _list(self, question: _Question) -> ListOffsetsPartitionResponse:
        try:
            return await self._answer(question)
        except FirnError as error:
            return _failed(question, error)

    async def _answer(self, question: _Question) -> ListOffsetsPartitionResponse:
        index = question.wanted.partition_index
        epoch = self._storage.leader_epoch(question.name, index)
        code = epoch_error(question.wanted.current_leader_epoch, epoch)
        if code is not ErrorCode.NONE:
            return ListOffsetsPartitionResponse(partition_index=index, error_code=code)
        timestamp = question.wanted.timestamp
        first_version = _FIRST_VERSIONS.get(timestamp, 0 if timestamp >= _EARLIEST else None)
        if first_version is None or question.version < first_version:
            unsupported = ErrorCode.UNSUPPORTED_VERSION
            return ListOffsetsPartitionResponse(partition_index=index, error_code=unsupported)
        offset, timestamp = await self._find(
            question.name, index, question.wanted.timestamp, question.is_committed
        )
        return ListOffsetsPartitionResponse(
            partition_index=index,
            offset=offset,
            timestamp=timestamp,
            leader_epoch=await self._epoch_at(question, offset, epoch),
        )

    async def _epoch_at(self, question: _Question, offset: int, epoch: int) -> int:
        """The epoch of the record at an offset, or of the next one to be written."""
        if offset < 0:
            return NO_EPOCH
        if epoch == FIRST_EPOCH or question.wanted.timestamp == _LATEST:
            return epoch
        status = await self._storage.status(question.name, question.wanted.partition_index)
        return epoch_of(status.segments, offset)

    async def _find(
        self, name: str, index: int, timestamp: int, committed: bool
    ) -> tuple[int, int]:
        start, end = await self._storage.bounds(name, index)
        if timestamp == _LATEST:
            return await self._storage.stable_offset(name, index) if committed else end, -1
        if timestamp == _EARLIEST:
            return start, -1
        if timestamp == _NEWEST_TIMESTAMP:
            return await self._storage.newest(name, index, committed=committed) or (-1, -1)
        if timestamp < _NEWEST_TIMESTAMP:
            return await self._find_tiered(name, index, timestamp), -1
        found = await self._storage.offset_at(name, index, timestamp, committed=committed)
        if found is None:
            return -1, -1
        return found, await self._storage.timestamp_of(name, index, found)

    async def _find_tiered(self, name: str, index: int, question: int) -> int:
        """Where what is on the node, or in the object store, begins or ends; -1 if there is no such
        place."""
        status = await self._storage.status(name, index)
        tiered = [each for each in status.segments if each.state is SegmentState.TIERED]
        if question == _EARLIEST_LOCAL:
            local = (each.base_offset for each in status.segments if each.is_on_nodes)
            return max(status.start_offset, next(local, status.start_offset))
        if question == _LATEST_TIERED:
            return tiered[-1].end_offset - 1 if tiered else -1
        if not self._storage.topic(name).config.is_tiered:
            return -1
        return max(status.start_offset, tiered[-1].end_offset) if tiered else status.start_offset

    async def _epoch(
        self, name: str, wanted: OffsetForLeaderPartition
    ) -> OffsetForLeaderPartitionResult:
        partition = wanted.partition
        try:
            epoch = self._storage.leader_epoch(name, partition)
            code = epoch_error(wanted.current_leader_epoch, epoch)
            if code is not ErrorCode.NONE:
                return OffsetForLeaderPartitionResult(partition=partition, error_code=code)
            found = await self._end_of_epoch(name, partition, wanted.leader_epoch, epoch)
        except FirnError as error:
            return OffsetForLeaderPartitionResult(
                partition=partition, error_code=code_of_read(error)
            )
        return OffsetForLeaderPartitionResult(
            partition=partition, leader_epoch=found.epoch, end_offset=found.end_offset
        )

    async def _end_of_epoch(self, name: str, partition: int, asked: int, epoch: int) -> EpochEnd:
        if asked == epoch:
            return EpochEnd(epoch, (await self._storage.bounds(name, partition))[1])
        status = await self._storage.status(name, partition)
        return end_of_epoch(status.segments, asked, status.end_offset)


def _failed(question: _Question, error: FirnError) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=question.wanted.partition_index, error_code=code_of_read(error)
    )
