"""Fetch requests of a client that has read everything and waits for the next batch.

A request like the one before it, for the end of one partition, needs no coroutine while it waits:
it watches the log, and the append itself answers it with the batch that was appended. When anything
else ends the wait, or when what is there is not that plain, the request takes the slow path,
`FetchHandler`.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import NamedTuple, Protocol

from firnmq.brokers.kafka.handlers.epochs import NO_EPOCH
from firnmq.brokers.kafka.handlers.fetch import WAIT_MS_MAX, FetchHandler
from firnmq.brokers.kafka.handlers.lookup import READ_COMMITTED
from firnmq.brokers.kafka.protocol import Part, RequestHeader, decode_request, encode_response
from firnmq.brokers.kafka.protocol.hot.fetch_template import FetchTemplate
from firnmq.brokers.kafka.protocol.messages.produce_fetch import FetchRequest
from firnmq.brokers.kafka.statistics import ApiStatistics, error_of
from firnmq.brokers.kafka.storage import KafkaStorage, StoredPartition
from firnmq.disk import FileRange
from firnmq.engines import BatchWatcher, OpenLog, ShownBatch
from firnmq.errors import FirnError

_READ_RECORDS_MAX = 64
_READ_BYTES_MAX = 16 * 1024
"""What a client is given at once that has read almost everything. One that has more to read gets
as much as it asked for, the ordinary way."""


class Client(Protocol):
    """What a connection is for this module."""

    loop: asyncio.AbstractEventLoop
    fetch_route: FetchRoute | None
    takes_ranges: bool

    def wait_ended(self) -> None:
        """The answer that the client waits for is ready."""

    def wait_failed(self, error: BaseException) -> None:
        """There will be no answer: a defect."""


class FetchRoute(NamedTuple):
    """What requests that fit a template read, as long as the topic is this one."""

    template: FetchTemplate
    log: OpenLog
    stored: StoredPartition


class FetchAnswer(BatchWatcher):
    """The answer to one request that waits for its partition to grow."""

    __slots__ = (
        *("_client", "_correlation_id", "_deadline_s", "_frame", "_log", "_offset", "_quick"),
        *("_route", "_started_s", "_task", "_timer"),
        *("is_ready", "parts", "size_bytes"),
    )

    def __init__(
        self,
        client: Client,
        quick: QuickFetch,
        route: FetchRoute,
        frame: bytearray,
        matched: tuple[int, int],
    ) -> None:
        super().__init__(client.loop)
        self._client = client
        self._quick = quick
        self._route = route
        self._log = route.log
        self._frame = frame
        self._correlation_id, self._offset = matched
        self._started_s = perf_counter()
        self.size_bytes = len(frame)
        self.parts: list[Part] | None = None
        self.is_ready = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle
        self._deadline_s = 0.0

    def watch(self) -> bool:
        """Begins to wait; False if the partition has grown already."""
        if not self._log.watch(self, self._offset):
            return False
        loop = self._client.loop
        wait_s = min(self._route.template.request.max_wait_ms, WAIT_MS_MAX) / 1000
        self._deadline_s = loop.time() + wait_s
        self._timer = loop.call_later(wait_s, self._go_on)
        return True

    def appended(self, shown: ShownBatch) -> None:
        if not (self.is_ready or self._task is not None or self._give(shown)):
            self._go_on()

    def _give(self, shown: ShownBatch) -> bool:
        """Answers with the batch; False if it is not all that the client is to get."""
        base_offset, batch, view = shown
        template = self._route.template
        if (
            base_offset != self._offset
            or len(batch) < template.request.min_bytes
            or not self._log.shows_all(view)
        ):
            return False
        self.parts = [
            template.response(self._correlation_id, view.end_offset, view.start_offset, batch)
        ]
        self.is_ready = True
        self._client.wait_ended()
        self._timer.cancel()
        self._log.note_reader(view)
        self._quick.handler.record_count += view.end_offset - base_offset
        self._quick.statistics.add(perf_counter() - self._started_s, 0)
        return True

    def settled(self, value: None, error: BaseException | None) -> None:
        if self.is_ready or self._task is not None:
            return
        shown = self.shown
        if shown is not None and len(shown.batch) <= _READ_BYTES_MAX and self._give(shown):
            return
        frame = self._quick.read(self._route, self._correlation_id, self._offset)
        if frame is None:
            self._go_on()
            return
        self._timer.cancel()
        self._quick.statistics.add(perf_counter() - self._started_s, 0)
        self._end([frame])

    def give_up(self) -> None:
        """The client wants no answer any more."""
        if self.is_ready:
            return
        self._log.unwatch(self)
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._end(None)

    def _go_on(self) -> None:
        """Looks at what is there, and waits for the rest of the time if it is not enough."""
        if self.is_ready or self._task is not None:
            return
        self._log.unwatch(self)
        self._timer.cancel()
        self._task = self._client.loop.create_task(self._fetch())
        self._task.add_done_callback(self._fetched)

    async def _fetch(self) -> None:
        header, request = decode_request(self._frame)
        assert isinstance(request, FetchRequest)
        response = await self._quick.handler.handle(
            request, takes_ranges=self._client.takes_ranges, deadline_s=self._deadline_s
        )
        self._quick.statistics.add(perf_counter() - self._started_s, error_of(response))
        self._end(encode_response(header, response))

    def _fetched(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._client.wait_failed(error)
            self._end(None)

    def _end(self, parts: list[Part] | None) -> None:
        if not self.is_ready:
            self.parts = parts
            self.is_ready = True
            self._client.wait_ended()


class ReadyAnswer:
    """The answer to a request that need not wait."""

    __slots__ = ("is_ready", "parts", "size_bytes")

    def __init__(self, frame: bytes, size_bytes: int) -> None:
        self.parts: list[Part] | None = [frame]
        self.size_bytes = size_bytes
        self.is_ready = True

    def give_up(self) -> None:
        """It is there already."""


class QuickFetch:
    """Begins requests that wait, on the event loop."""

    def __init__(
        self, storage: KafkaStorage, handler: FetchHandler, statistics: ApiStatistics
    ) -> None:
        self._storage = storage
        self._topics = storage.catalog.by_name
        self.handler = handler
        self.statistics = statistics

    def learn(
        self, frame: bytearray, header: RequestHeader, request: FetchRequest, client: Client
    ) -> None:
        """Remembers a request that was parsed, for the client's next one."""
        route = client.fetch_route
        if route is not None and self._is_current(route) and route.template.match(frame):
            return
        client.fetch_route = None
        template = FetchTemplate.learn(frame, header, request)
        if template is None:
            return
        (topic,) = request.topics
        try:
            name = self._storage.named(topic.topic, topic.topic_id)
            stored = self._storage.partition(name, topic.partitions[0].partition)
        except FirnError:
            return  # The slow path answers with the error.
        log = stored.driver.open_log(stored.shard)
        known_epoch = topic.partitions[0].current_leader_epoch
        if log is not None and known_epoch in (NO_EPOCH, log.epoch):
            client.fetch_route = FetchRoute(template, log, stored)

    def begin(self, frame: bytearray, client: Client) -> FetchAnswer | ReadyAnswer | None:
        """Waits for the client, or answers with the little that is there; None if there is more,
        or something else to be told."""
        route = client.fetch_route
        if route is None:
            return None
        matched = route.template.match(frame)
        if matched is None or not self._is_current(route):
            return None
        view = route.log.view
        if view.stable_offset != view.end_offset:
            return None
        ahead_count = view.end_offset - matched[1]
        if ahead_count:
            return self._answer(route, frame, matched) if ahead_count > 0 else None
        answer = FetchAnswer(client, self, route, frame, matched)
        return answer if answer.watch() else None

    def _answer(
        self, route: FetchRoute, frame: bytearray, matched: tuple[int, int]
    ) -> ReadyAnswer | None:
        started_s = perf_counter()
        if route.log.view.end_offset - matched[1] > _READ_RECORDS_MAX:
            return None
        found = self.read(route, *matched)
        if found is None:
            return None
        self.statistics.add(perf_counter() - started_s, 0)
        return ReadyAnswer(found, len(frame))

    def read(self, route: FetchRoute, correlation_id: int, offset: int) -> bytes | None:
        """The answer with all that is there, if it is enough, little and in memory."""
        request, stored = route.template.request, route.stored
        (partition,) = request.topics[0].partitions
        try:
            page = stored.driver.read_stored_nowait(
                stored.shard,
                offset,
                max_bytes=min(_READ_BYTES_MAX, request.max_bytes, partition.partition_max_bytes),
                committed=request.isolation_level == READ_COMMITTED,
                ranges=False,
            )
        except FirnError:
            return None  # The slow path answers with the error.
        if page is None or len(page.contents) != 1 or page.aborted:
            return None
        (content,) = page.contents
        end_offset = page.end_offset
        if (
            isinstance(content, FileRange)
            or page.next_offset != end_offset
            or page.stable_offset != end_offset
            or not request.min_bytes <= len(content) <= _READ_BYTES_MAX
        ):
            return None
        self.handler.record_count += end_offset - offset
        return route.template.response(correlation_id, end_offset, page.start_offset, content)

    def _is_current(self, route: FetchRoute) -> bool:
        topic = route.stored.topic
        return self._topics.get(topic.name) is topic and route.log.is_current
