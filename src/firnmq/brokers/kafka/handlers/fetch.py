"""Fetch: stored bytes to the socket, waiting for more where the client wants to."""

from __future__ import annotations

import asyncio

from firnmq.adapter import EngineStorageAdapter
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
from firnmq.disk import FileRange
from firnmq.disk.ranges import mappings_left
from firnmq.engines import StoredPage
from firnmq.errors import FirnError, OffsetOutOfRange

_WAIT_MS_MAX = 30_000
_RESPONSE_BYTES_MAX = 64 * 1024 * 1024
"""However much a client asks for, one response is no larger, but for one whole batch."""
_COPIED_BYTES_MAX = 8 * 1024 * 1024
"""What is not sent from the file is in memory until a slow client has taken it."""
_RANGES_MAX = 64
"""File ranges in one response, each of which keeps a descriptor until it is sent."""


class FetchHandler:
    def __init__(self, storage: KafkaStorage) -> None:
        self._storage = storage

    async def handle(self, request: FetchRequest, *, takes_ranges: bool = False) -> FetchResponse:
        """Answers at once where there is enough, else when there is, or when the client's time is
        over. A client behind TLS takes no file ranges."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(request.max_wait_ms, 0), _WAIT_MS_MAX) / 1000
        while True:
            look = _Look(self._storage, request, takes_ranges=takes_ranges)
            waits_on = look.read_nowait()
            if waits_on is not None:
                await waits_on.in_reader(look.read)
            remaining = deadline - loop.time()
            if look.total_bytes >= request.min_bytes or look.has_error or remaining <= 0:
                return look.response()
            await self._storage.wait_for_append(look.ends(), remaining)


class _Look:
    """One look at every partition of a request, in order, within the limits of the response.

    It begins in the event loop's thread. Where a read would have to wait, it goes on in another
    one, with everything that is left: a request changes threads once at most.
    """

    def __init__(self, storage: KafkaStorage, request: FetchRequest, *, takes_ranges: bool) -> None:
        self._storage = storage
        self._wanted = [
            (topic.topic, wanted) for topic in request.topics for wanted in topic.partitions
        ]
        self._request = request
        self._ranges_left = min(_RANGES_MAX, mappings_left()) if takes_ranges else 0
        self._copied_bytes = 0
        self._is_committed = request.isolation_level == READ_COMMITTED
        self._room = min(request.max_bytes, _RESPONSE_BYTES_MAX)
        self._found: list[PartitionData] = []
        self.total_bytes = 0
        self.has_error = False

    def read_nowait(self) -> EngineStorageAdapter | None:
        """Reads until that means waiting; then returns the driver to wait with."""
        wanted = self._wanted
        while len(self._found) < len(wanted):
            driver = self._next(*wanted[len(self._found)], may_wait=False)
            if driver is not None:
                return driver
        return None

    def read(self) -> None:
        """Reads what is left. Called in a thread that may wait."""
        for name, wanted in self._wanted[len(self._found) :]:
            self._next(name, wanted, may_wait=True)

    def response(self) -> FetchResponse:
        found = iter(self._found)
        return FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic=topic.topic, partitions=[next(found) for _ in topic.partitions]
                )
                for topic in self._request.topics
            ]
        )

    def ends(self) -> list[tuple[str, int, int]]:
        """Topic, partition and end of everything that was looked at."""
        return [
            (name, wanted.partition, data.high_watermark)
            for (name, wanted), data in zip(self._wanted, self._found, strict=True)
        ]

    def _next(
        self, name: str, wanted: FetchPartition, *, may_wait: bool
    ) -> EngineStorageAdapter | None:
        """Reads the next partition; returns its driver if that means waiting and it may not."""
        offset = wanted.fetch_offset
        room = self._room - self.total_bytes
        # The first batch goes out whatever its size: the client could not go on without it.
        ranges = self._ranges_left > 0
        if not ranges:
            room = min(room, _COPIED_BYTES_MAX - self._copied_bytes)
        limit = min(wanted.partition_max_bytes, room)
        if limit <= 0 and self.total_bytes == 0:
            limit = 1
        try:
            _, driver, shard = self._storage.partition(name, wanted.partition)
            page = driver.read_stored_nowait(
                shard, offset, max_bytes=limit, committed=self._is_committed, ranges=ranges
            )
            if page is None:
                if not may_wait:
                    return driver
                page = driver.read_stored(
                    shard, offset, max_bytes=limit, committed=self._is_committed, ranges=ranges
                )
        except FirnError as error:
            self.has_error = True
            self._found.append(_failed(wanted, error))
            return None
        for content in page.contents:
            size = len(content)
            self.total_bytes += size
            if isinstance(content, FileRange):
                self._ranges_left -= 1
            else:
                self._copied_bytes += size
        self._found.append(_found(wanted, page, is_committed=self._is_committed))
        return None


def _found(wanted: FetchPartition, page: StoredPage, *, is_committed: bool) -> PartitionData:
    aborted = None
    if is_committed and page.contents:
        aborted = [
            AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in page.aborted
        ]
    return PartitionData(
        partition_index=wanted.partition,
        error_code=ErrorCode.NONE,
        high_watermark=page.end_offset,
        last_stable_offset=page.stable_offset,
        log_start_offset=page.start_offset,
        aborted_transactions=aborted,
        records=page.contents,
    )


def _failed(wanted: FetchPartition, error: FirnError) -> PartitionData:
    start, end = (error.start, error.end) if isinstance(error, OffsetOutOfRange) else (-1, -1)
    return PartitionData(
        partition_index=wanted.partition,
        error_code=code_of(error),
        high_watermark=end,
        log_start_offset=start,
    )
