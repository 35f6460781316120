"""Fetch: stored bytes to the socket, waiting for more where the client wants to."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, Protocol, TypeAlias

from msgspec import structs

from firnmq.adapter import BatchStorage
from firnmq.brokers.kafka.failures import code_of_read
from firnmq.brokers.kafka.handlers.epochs import epoch_error
from firnmq.brokers.kafka.handlers.lookup import READ_COMMITTED
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from firnmq.brokers.kafka.storage import KafkaStorage, leader_epoch
from firnmq.brokers.net.loop_turns import Turns
from firnmq.disk import FileRange
from firnmq.disk.ranges import mappings_left
from firnmq.engines import StoredPage
from firnmq.errors import FirnError, OffsetOutOfRange

_ColdKey: TypeAlias = tuple[str, int, bool]
"""Shard, offset, and whether only what is committed is wanted."""

_FULL_FETCH_EPOCHS = (0, -1)
"""Epochs of requests that name all their partitions; others continue a session."""
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
_READS_AT_ONCE = 100
"""Partitions that are read in the event loop before other requests go on."""
_PARTITION_BYTES = 256
"""Memory of a partition in a request that waits; in its frame it has 16 bytes or more."""


def request_bytes(request: FetchRequest) -> int:
    """Memory that a request takes while it waits, beside its frame."""
    return _PARTITION_BYTES * sum(len(topic.partitions) for topic in request.topics)


class FetchHandler:
    def __init__(self, storage: KafkaStorage, turns: Turns) -> None:
        self._storage = storage
        self.record_count = 0
        """Offsets that were sent to clients, those of deleted records among them included."""
        self._turns = turns
        self._cold_pages: dict[_ColdKey, asyncio.Future[StoredPage]] = {}
        """Reads from the object store that are under way. A client that did not wait for the end
        of one asks again, and then waits for the same one."""

    async def handle(
        self,
        request: FetchRequest,
        *,
        takes_ranges: bool = False,
        deadline_s: float | None = None,
        turns: FetchTurns | None = None,
    ) -> FetchResponse:
        """Answers at once where there is enough, else when there is, or when the client's time is
        over, which may have been fixed before. A client behind TLS takes no file ranges. `turns`
        is what was left out of the client's last response."""
        if request.session_epoch not in _FULL_FETCH_EPOCHS:
            # No session is ever made, so the client goes on with a full request.
            return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND, responses=())
        request = await self._distinct(await self._named(request))
        first = None if turns is None else turns.fetch_first
        loop = asyncio.get_running_loop()
        wait_s = min(max(request.max_wait_ms, 0), WAIT_MS_MAX) / 1000
        deadline = loop.time() + wait_s if deadline_s is None else deadline_s
        while True:
            look = _Look(self._storage, request, first, takes_ranges=takes_ranges)
            waits_on = look.read_nowait()
            while waits_on is None and not look.is_done:
                await self._turns.give_way()
                waits_on = look.read_nowait()
            if waits_on is not None:
                await waits_on.in_reader(look.read)
            if look.cold:
                has_enough = 0 < request.min_bytes <= look.total_bytes
                wait_s = max(0 if has_enough else deadline - loop.time(), _COLD_WAIT_S_MIN)
                if await self._read_cold(look, wait_s):
                    return self._answer(look, turns)
            remaining = deadline - loop.time()
            is_full = look.left_out is not None
            has_enough = is_full or look.total_bytes >= request.min_bytes
            if has_enough or look.has_error or remaining <= 0:
                return self._answer(look, turns)
            ends = look.ends()
            del look  # What it found takes more memory than the request.
            await self._storage.wait_for_append(ends, remaining)

    async def _named(self, request: FetchRequest) -> FetchRequest:
        """The request with the names of its topics, which later versions give by id."""
        if not request.topics or request.topics[0].topic:
            return request
        topics = [
            FetchTopic(
                topic=self._storage.named(each.topic, each.topic_id),
                topic_id=each.topic_id,
                partitions=each.partitions,
            )
            async for each in self._turns.over(request.topics)
        ]
        return structs.replace(request, topics=topics)  # type: ignore[type-var]

    async def _distinct(self, request: FetchRequest) -> FetchRequest:
        """The request with each partition once: what it names again has the same records."""
        count = sum(len(topic.partitions) for topic in request.topics)
        seen: set[tuple[str, int]] = set()
        if count <= _READS_AT_ONCE:
            seen = {
                (each.topic, wanted.partition)
                for each in request.topics
                for wanted in each.partitions
            }
            if len(seen) == count:
                return request
            seen.clear()
        topics = []
        async for topic in self._turns.over(request.topics):
            partitions = []
            async for wanted in self._turns.over(topic.partitions):
                if (topic.topic, wanted.partition) not in seen:
                    seen.add((topic.topic, wanted.partition))
                    partitions.append(wanted)
            if partitions:
                topics.append(
                    FetchTopic(topic=topic.topic, topic_id=topic.topic_id, partitions=partitions)
                )
        if len(seen) == count:
            return request
        return structs.replace(request, topics=topics)  # type: ignore[type-var]

    def _answer(self, look: _Look, turns: FetchTurns | None) -> FetchResponse:
        self.record_count += look.record_count
        if turns is not None:
            turns.fetch_first = look.left_out
        return look.response()

    async def _read_cold(self, look: _Look, wait_s: float) -> bool:
        """Reads what is only in the object store or on another node, all of it at once; returns
        whether some was read in time. What was not is left out: other partitions do not wait for
        it."""
        begun = [(part, self._begin_cold(part, look.is_committed)) for part in look.cold]
        await asyncio.wait([page for _, page in begun], timeout=wait_s)
        has_data = False
        for part, page in begun:
            if not page.done():
                look.put_bounds(part)
                continue
            try:
                found = page.result()
                look.put(part, found)
                # Another node may have nothing beyond the offset yet.
                has_data |= found.next_offset > part.wanted.fetch_offset
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

            page = self._cold_pages[key] = part.driver.in_reader(read, cold=True)
            page.add_done_callback(lambda done: self._end_cold(key, done))
        return page

    def _end_cold(self, key: _ColdKey, page: asyncio.Future[StoredPage]) -> None:
        del self._cold_pages[key]
        if not page.cancelled():
            page.exception()  # Retrieved, since perhaps no request waits for it any more.


class FetchTurns(Protocol):
    """Which partition of a client is read first, so that all of them have their turn."""

    fetch_first: tuple[str, int] | None
    """Topic and partition for whose records the last response had no space."""


class _ColdPart(NamedTuple):
    """A partition whose records are to be read from the object store."""

    number: int
    """Its place in the request."""
    wanted: FetchPartition
    driver: BatchStorage
    shard: str
    max_bytes: int
    is_first: bool
    """Whether one batch is given out whatever its size."""


class _Look:
    """One look at every partition of a request, within the limits of the response.

    The first partition that has records gives at least one batch, whatever its size: the client
    could not go on without it. The others give nothing that would exceed a limit.

    The look begins in the event loop's thread. Where a read would have to wait, it goes on in
    another thread, with everything that is left: a request changes threads once at most.
    """

    def __init__(
        self,
        storage: KafkaStorage,
        request: FetchRequest,
        first: tuple[str, int] | None,
        *,
        takes_ranges: bool,
    ) -> None:
        """Partitions are read from `first` on if it is one of them, else in their order."""
        self._storage = storage
        self._wanted = [
            (topic.topic, wanted) for topic in request.topics for wanted in topic.partitions
        ]
        self._request = request
        self._ranges_left = min(_RANGES_MAX, mappings_left()) if takes_ranges else 0
        self._copied_bytes = 0
        self.is_committed = request.isolation_level == READ_COMMITTED
        self._room = min(request.max_bytes, _RESPONSE_BYTES_MAX)
        places = range(len(self._wanted))
        start = next((at for at in places if self._is_at(at, first)), 0) if first else 0
        self._left = deque((*places[start:], *places[:start]))
        """Places in the request that are still to be read."""
        self._found: dict[int, PartitionData] = {}
        """By place in the request."""
        self.left_out: tuple[str, int] | None = None
        """The first partition with records for which there was no space."""
        self.cold: list[_ColdPart] = []
        """What is left to be read from the object store; its places have no records yet."""
        self._cold_bytes = 0
        """Room in the response that is kept for that."""
        self.total_bytes = 0
        self.record_count = 0
        self.has_error = False

    @property
    def is_done(self) -> bool:
        return not self._left

    def read_nowait(self) -> BatchStorage | None:
        """Reads some partitions, until that means waiting; then returns the driver to wait with."""
        end = max(len(self._left) - _READS_AT_ONCE, 0)
        while len(self._left) > end:
            driver = self._next(self._left[0], may_wait=False)
            if driver is not None:
                return driver
            self._left.popleft()
        return None

    def read(self) -> None:
        """Reads what is left. Called in a thread that may wait."""
        while self._left:
            self._next(self._left.popleft(), may_wait=True)

    def put(self, part: _ColdPart, page: StoredPage) -> None:
        limit = None if part.is_first else part.max_bytes
        self._take(part.number, part.wanted, page, limit)

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
        found = (self._found[place] for place in range(len(self._wanted)))
        return FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic=topic.topic,
                    topic_id=topic.topic_id,
                    partitions=[next(found) for _ in topic.partitions],
                )
                for topic in self._request.topics
            ]
        )

    def ends(self) -> list[tuple[str, int, int]]:
        """Topic, partition and end of everything that was looked at, each partition once."""
        ends = {
            (name, wanted.partition): self._found[place].high_watermark
            for place, (name, wanted) in enumerate(self._wanted)
        }
        return [(name, index, end) for (name, index), end in ends.items()]

    def _is_at(self, place: int, partition: tuple[str, int]) -> bool:
        name, wanted = self._wanted[place]
        return (name, wanted.partition) == partition

    def _next(self, place: int, *, may_wait: bool) -> BatchStorage | None:
        """Reads a partition; returns its driver if that means waiting and it may not."""
        name, wanted = self._wanted[place]
        offset = wanted.fetch_offset
        room = self._room - self.total_bytes - self._cold_bytes
        ranges = self._ranges_left > 0
        if not ranges:
            room = min(room, _COPIED_BYTES_MAX - self._copied_bytes)
        is_first = self.total_bytes == 0 and not self.cold
        limit = min(wanted.partition_max_bytes, room)
        if is_first:
            limit = max(limit, 1)
        try:
            _, driver, shard = self._storage.partition(name, wanted.partition)
            if wanted.current_leader_epoch >= 0:
                epoch = leader_epoch(driver, shard)
                code = epoch_error(wanted.current_leader_epoch, epoch)
                if code is not ErrorCode.NONE:
                    self.has_error = True
                    self._found[place] = PartitionData(
                        partition_index=wanted.partition, error_code=code, high_watermark=-1
                    )
                    return None
            page = driver.read_stored_nowait(
                shard, offset, max_bytes=limit, committed=self.is_committed, ranges=ranges
            )
            if page is None:
                if not may_wait and driver.open_log(shard) is None:
                    return driver
                if driver.is_cold(shard, offset=offset):
                    self._leave_cold(_ColdPart(place, wanted, driver, shard, limit, is_first))
                    return None
                if not may_wait:
                    return driver
                page = driver.read_stored(
                    shard, offset, max_bytes=limit, committed=self.is_committed, ranges=ranges
                )
        except FirnError as error:
            self.has_error = True
            self._found[place] = _failed(wanted, error)
            return None
        self._take(place, wanted, page, None if is_first else limit)
        return None

    def _take(
        self, place: int, wanted: FetchPartition, page: StoredPage, limit: int | None
    ) -> None:
        """Puts a page into the response, without its records if they exceed the limit."""
        if limit is not None:
            if sum(map(len, page.contents)) > limit:
                page = page._replace(contents=(), next_offset=wanted.fetch_offset, aborted=())
                if limit < wanted.partition_max_bytes:
                    self._room = 0  # The next partitions need not be read in vain.
            end_offset = page.stable_offset if self.is_committed else page.end_offset
            if not page.contents and wanted.fetch_offset < end_offset and self.left_out is None:
                self.left_out = self._wanted[place][0], wanted.partition
        self._count(wanted, page)
        self._found[place] = _found(wanted, page, is_committed=self.is_committed)

    def _leave_cold(self, part: _ColdPart) -> None:
        """Leaves a partition for later; its room in the response is taken now."""
        room = min(part.max_bytes, _COLD_BYTES_MAX)
        self.cold.append(part._replace(max_bytes=room))
        self._cold_bytes += room
        self._found[part.number] = PartitionData(
            partition_index=part.wanted.partition, error_code=ErrorCode.NONE, high_watermark=-1
        )

    def _count(self, wanted: FetchPartition, page: StoredPage) -> None:
        if page.contents:
            self.record_count += page.next_offset - wanted.fetch_offset
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
        error_code=code_of_read(error),
        high_watermark=end,
        log_start_offset=start,
    )
