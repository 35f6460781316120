"""Fetch: stored bytes to the socket, waiting for more where the client wants to."""

from __future__ import annotations

import asyncio

from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.handlers.lookup import READ_COMMITTED
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.engines import RawPage
from firnmq.errors import FirnError, OffsetOutOfRange

_WAIT_MS_MAX = 30_000
_RESPONSE_BYTES_MAX = 64 * 1024 * 1024
"""However much a client asks for, one response is no larger, but for one whole batch."""


class FetchHandler:
    def __init__(self, storage: KafkaStorage) -> None:
        self._storage = storage

    async def handle(self, request: FetchRequest) -> FetchResponse:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(request.max_wait_ms, 0), _WAIT_MS_MAX) / 1000
        while True:
            response, size, has_error = await self._read(request)
            remaining = deadline - loop.time()
            if size >= request.min_bytes or has_error or remaining <= 0:
                return response
            await self._storage.wait_for_append(
                [
                    (topic.topic, data.partition_index, data.high_watermark)
                    for topic in response.responses
                    for data in topic.partitions
                ],
                remaining,
            )

    async def _read(self, request: FetchRequest) -> tuple[FetchResponse, int, bool]:
        room = min(request.max_bytes, _RESPONSE_BYTES_MAX)
        total = 0
        has_error = False
        topics = []
        for topic in request.topics:
            partitions = []
            for wanted in topic.partitions:
                data = await self._read_partition(
                    topic.topic,
                    wanted,
                    room - total,
                    is_first=total == 0,
                    committed=request.isolation_level == READ_COMMITTED,
                )
                size = sum(map(len, data.records)) if isinstance(data.records, list) else 0
                total += size
                has_error = has_error or data.error_code != 0
                partitions.append(data)
            topics.append(FetchableTopicResponse(topic=topic.topic, partitions=partitions))
        return FetchResponse(responses=topics), total, has_error

    async def _read_partition(
        self, name: str, wanted: FetchPartition, room: int, *, is_first: bool, committed: bool
    ) -> PartitionData:
        try:
            start, end = await self._storage.bounds(name, wanted.partition)
            stable = await self._storage.stable_offset(name, wanted.partition)
            readable_end = stable if committed else end
            if not start <= wanted.fetch_offset <= end:
                raise OffsetOutOfRange(wanted.fetch_offset, start=start, end=end)
            limit = min(wanted.partition_max_bytes, room)
            if wanted.fetch_offset >= readable_end or (limit <= 0 and not is_first):
                return PartitionData(
                    partition_index=wanted.partition,
                    high_watermark=end,
                    last_stable_offset=min(stable, end),
                    log_start_offset=start,
                )
            page = await self._storage.read(
                name, wanted.partition, wanted.fetch_offset, max(limit, 1), committed=committed
            )
        except FirnError as error:
            return PartitionData(
                partition_index=wanted.partition,
                error_code=code_of(error),
                high_watermark=-1 if not isinstance(error, OffsetOutOfRange) else error.end,
                log_start_offset=-1 if not isinstance(error, OffsetOutOfRange) else error.start,
            )
        return PartitionData(
            partition_index=wanted.partition,
            error_code=ErrorCode.NONE,
            high_watermark=page.end_offset,
            last_stable_offset=page.stable_offset,
            log_start_offset=page.start_offset,
            aborted_transactions=_aborted(page) if committed else None,
            records=list(page.batches),
        )


def _aborted(page: RawPage) -> list[AbortedTransaction]:
    return [
        AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
        for each in page.aborted
    ]
