"""Fetch: stored bytes to the socket, waiting for more where the client wants to."""

from __future__ import annotations

import asyncio
from typing import NamedTuple, TypeAlias

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

_ColdKey: TypeAlias = tuple[str, int, bool]
"""Shard, offset, and whether only what is committed is wanted."""

WAIT_MS_MAX = 30_000
_RESPONSE_BYTES_MAX = 64 * 1024 * 1024
"""However much a client asks for, one response is no larger, but for one whole batch."""
_COPIED_BYTES_MAX = 8 * 1024 * 1024
"""What is not sent from the file is in memory until a slow client has taken it."""
_COLD_BYTES_MAX = 4 * 1024 * 1024
"""What is read of a partition from the object store for one response."""
_COLD_WAIT_S_MIN = 0.2
"""How long a client waits for the object store even if it wants to wait less, or has something
already: else it would never get anything from there."""
_RANGES_MAX = 64
"""File ranges in one response, each of which keeps a descriptor until it is sent."""


class FetchHandler:
    def __init__(self, storage: KafkaStorage) -> None:
        self._storage = storage
        self._cold_pages: dict[_ColdKey, asyncio.Future[StoredPage]] = {}
        """Reads from the object store that are under way. A client that did not wait for the end
        of one asks again, and then waits for the same one."""

    async def handle(
        self,
        request: FetchRequest,
        *,
        takes_ranges: bool = False,
        deadline_s: float | None = None,
    ) -> FetchResponse:
        """Answers at once where there is enough, else when there is, or when the client's time is
        over, which may have been fixed before. A client behind TLS takes no file ranges."""
        loop = asyncio.get_running_loop()
        wait_s = min(max(request.max_wait_ms, 0), WAIT_MS_MAX) / 1000
        deadline = loop.time() + wait_s if deadline_s is None else deadline_s
        while True:
            look = _Look(self._storage, request, takes_ranges=takes_ranges)
            waits_on = look.read_nowait()
            if waits_on is not None:
                await waits_on.in_reader(look.read)
            if look.cold:
                has_enough = 0 < request.min_bytes <= look.total_bytes
                wait_s = max(0 if has_enough else deadline - loop.time(), _COLD_WAIT_S_MIN)
                if await self._read_cold(look, wait_s):
                    return look.response()
            remaining = deadline - loop.time()
            if look.total_bytes >= request.min_bytes or look.has_error or remaining <= 0:
                return look.response()
            await self._storage.wait_for_append(look.ends(), remaining)

    async def _read_cold(self, look: _Look, wait_s: float) -> bool:
        """Reads what is only in the object store, all of it at once; returns whether some was
        read in time. What was not is left out: other partitions do not wait for it."""
        begun = [(part, self._begin_cold(part, look.is_committed)) for part in look.cold]
        await asyncio.wait([page for _, page in begun], timeout=wait_s)
        has_data = False
        for part, page in begun:
            if not page.done():
                look.put_bounds(part)
                continue
            try:
                look.put(part, page.result())
                has_data = True
            except FirnError as error:
                look.put_error(part, error)
        return has_data

    def _begin_cold(self, part: _ColdPart, is_committed: bool) -> asyncio.Future[StoredPage]:
        key = (part.shard, part.wanted.fetch_offset, is_committed)
        page = self._cold_pages.get(key)
        if page is None:

            def read() -> StoredPage:
                return part.driver.read_stored(
                    part.shard,
                    part.wanted.fetch_offset,
                    max_bytes=part.max_bytes,
                    committed=is_committed,
                    ranges=False,
                )

            page = self._cold_pages[key] = part.driver.begin_cold(read)
            page.add_done_callback(lambda done: self._end_cold(key, done))
        return page

    def _end_cold(self, key: _ColdKey, page: asyncio.Future[StoredPage]) -> None:
        del self._cold_pages[key]
        if not page.cancelled():
            page.exception()  # Perhaps nobody waits for it any more.


class _ColdPart(NamedTuple):
    """A partition whose records are to be read from the object store."""

    number: int
    """Its place in the request."""
    wanted: FetchPartition
    driver: EngineStorageAdapter
    shard: str
    max_bytes: int


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
        self.is_committed = request.isolation_level == READ_COMMITTED
        self._room = min(request.max_bytes, _RESPONSE_BYTES_MAX)
        self._found: list[PartitionData] = []
        self.cold: list[_ColdPart] = []
        """What is left to be read from the object store; its places have no records yet."""
        self._cold_bytes = 0
        """Room in the response that is kept for that."""
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

    def put(self, part: _ColdPart, page: StoredPage) -> None:
        self._count(page)
        self._found[part.number] = _found(part.wanted, page, is_committed=self.is_committed)

    def put_bounds(self, part: _ColdPart) -> None:
        """Leaves a partition without records; the client will ask again."""
        try:
            page = part.driver.read_stored_nowait(
                part.shard,
                part.wanted.fetch_offset,
                max_bytes=0,
                committed=self.is_committed,
                ranges=False,
            )
        except FirnError as error:
            self.put_error(part, error)
            return
        if page is not None:
            self.put(part, page)

    def put_error(self, part: _ColdPart, error: FirnError) -> None:
        self.has_error = True
        self._found[part.number] = _failed(part.wanted, error)

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
        room = self._room - self.total_bytes - self._cold_bytes
        # The first batch goes out whatever its size: the client could not go on without it.
        ranges = self._ranges_left > 0
        if not ranges:
            room = min(room, _COPIED_BYTES_MAX - self._copied_bytes)
        limit = min(wanted.partition_max_bytes, room)
        if limit <= 0 and self.total_bytes == 0 and not self.cold:
            limit = 1
        try:
            _, driver, shard = self._storage.partition(name, wanted.partition)
            page = driver.read_stored_nowait(
                shard, offset, max_bytes=limit, committed=self.is_committed, ranges=ranges
            )
            if page is None:
                if not may_wait and not driver.is_open(shard):
                    return driver
                if driver.reads_cold(shard, offset):
                    self._leave_cold(_ColdPart(len(self._found), wanted, driver, shard, limit))
                    return None
                if not may_wait:
                    return driver
                page = driver.read_stored(
                    shard, offset, max_bytes=limit, committed=self.is_committed, ranges=ranges
                )
        except FirnError as error:
            self.has_error = True
            self._found.append(_failed(wanted, error))
            return None
        self._count(page)
        self._found.append(_found(wanted, page, is_committed=self.is_committed))
        return None

    def _leave_cold(self, part: _ColdPart) -> None:
        """Leaves a partition for later; its room in the response is taken now."""
        room = min(part.max_bytes, _COLD_BYTES_MAX)
        self.cold.append(part._replace(max_bytes=room))
        self._cold_bytes += room
        self._found.append(
            PartitionData(
                partition_index=part.wanted.partition, error_code=ErrorCode.NONE, high_watermark=-1
            )
        )

    def _count(self, page: StoredPage) -> None:
        for content in page.contents:
            size = len(content)
            self.total_bytes += size
            if isinstance(content, FileRange):
                self._ranges_left -= 1
            else:
                self._copied_bytes += size


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
