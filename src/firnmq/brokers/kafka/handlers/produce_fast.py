"""Produce, the fast path: a request like the client's last one needs no coroutine and no future.

It is compared with the last one, its batch is checked, and what arrived together is submitted
together. Where the worker is idle and the topic needs no sync, it is appended and answered in the
call that received it; else the worker wakes the event loop once for all that it has acknowledged.
Every other request takes the slow path, `ProduceHandler`: other requests than the last one,
transactions, shards that are not open, batches that take an event loop too long to check, full
queues. The fast path decides that before it changes anything.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol

from firnmq.adapter import BatchStorage, Topic, shown_shard
from firnmq.brokers.kafka.handlers.produce import acks_of, deadline_of, refused
from firnmq.brokers.kafka.protocol import Part, RequestHeader, encode_response
from firnmq.brokers.kafka.protocol.hot.produce_template import ProduceTemplate
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from firnmq.brokers.kafka.statistics import ApiStatistics
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.disk import Notice
from firnmq.engines import Acks, Append, Appended, InlineAppends, LogKeeper, OpenLog
from firnmq.errors import FirnError, ShardError, StorageFailed
from firnmq.record.batch import ATTRIBUTE_TRANSACTIONAL, attributes_of


class Client(Protocol):
    """What a connection is for this module."""

    loop: asyncio.AbstractEventLoop
    produce_route: ProduceRoute | None

    def answer_ready(self) -> None:
        """One of the answers that the client waits for is ready."""


class ProduceRoute:
    """Where requests that fit a template go, as long as the topic is this one."""

    __slots__ = ("_driver", "acks", "logs", "template", "timeout_ms", "topic")

    def __init__(
        self, template: ProduceTemplate, topic: Topic, driver: BatchStorage, timeout_ms: int
    ) -> None:
        self.template = template
        self.topic = topic
        self._driver = driver
        self.acks = acks_of(template.acks) or Acks.NONE
        self.timeout_ms = timeout_ms
        self.logs: dict[int, OpenLog] = {}
        """By partition."""

    def log(self, index: int) -> OpenLog | None:
        """The log of a partition, if there is one and it is open."""
        log = self.logs.get(index)
        if log is not None and log.is_current:
            return log
        self.logs.pop(index, None)
        if not 0 <= index < self.topic.shard_count:
            return None
        log = self._driver.open_log(self.topic.shard_name(index))
        if log is not None:
            self.logs[index] = log
        return log


class ProduceAnswer(Notice[Appended]):
    """The answer to one request; it is ready when its batch is acknowledged, or never will be."""

    __slots__ = (
        *("_client", "_correlation_id", "_index", "_log", "_started_s", "_statistics"),
        *("_route", "is_ready", "parts", "size_bytes"),
    )

    def __init__(
        self,
        client: Client,
        route: ProduceRoute,
        log: OpenLog,
        matched: tuple[int, int],
        size_bytes: int,
        started_s: float,
        statistics: ApiStatistics,
    ) -> None:
        super().__init__(client.loop)
        self._client = client
        self._route = route
        self._log = log
        self._correlation_id, self._index = matched
        self._statistics = statistics
        self._started_s = started_s
        self.size_bytes = size_bytes
        self.parts: list[Part] | None = None
        self.is_ready = False

    def settled(self, value: Appended | None, error: BaseException | None) -> None:
        template, code = self._route.template, 0
        if value is not None:
            answer = template.response(
                self._correlation_id, self._index, value.base_offset, self._log.view.start_offset
            )
        else:
            assert error is not None
            answer, code = _refusal_of(error, self._route, self._correlation_id, self._index)
        if template.acks != 0:  # Else the client expects no answer, not even for an error.
            self.parts = [answer]
        self._statistics.add(monotonic() - self._started_s, code)
        self.is_ready = True
        self._client.answer_ready()


class FastProduce:
    """Begins requests on the event loop. Call `begin` for each, `submit` for all that arrived
    together, send the answers that are ready, then `wake`."""

    def __init__(self, storage: KafkaStorage, statistics: ApiStatistics) -> None:
        self._storage = storage
        self._topics = storage.catalog.by_name
        self._statistics = statistics
        self._prepared: dict[LogKeeper, list[Append]] = {}
        self._inline: InlineAppends | None = None

    def learn(
        self, frame: bytearray, header: RequestHeader, request: ProduceRequest, client: Client
    ) -> None:
        """Remembers a request that was parsed, for the client's next one."""
        client.produce_route = None
        template = ProduceTemplate.learn(frame, header, request)
        if template is None:
            return
        name = self._storage.named(template.topic.name, template.topic.topic_id)
        topic = self._storage.find(name)
        # The template's answers have no time of append.
        if topic is not None and not topic.config.has_append_time:
            driver = self._storage.manager.driver(topic.config.storage_type).batches
            if driver is not None:
                client.produce_route = ProduceRoute(template, topic, driver, request.timeout_ms)

    def begin(self, frame: bytearray, client: Client) -> ProduceAnswer | None:
        """Prepares a request, or refuses its batch; None if it must take the slow path.

        What was prepared is stored only once `submit` has been called.
        """
        route = client.produce_route
        if route is None:
            return None
        started_s = monotonic()
        matched = route.template.match(frame)
        # A topic that was changed is another object.
        if matched is None or self._topics.get(route.topic.name) is not route.topic:
            return None
        correlation_id, index, records = matched
        if attributes_of(records) & ATTRIBUTE_TRANSACTIONAL:
            return None
        log = route.log(index)
        if log is None:
            return None
        place = (correlation_id, index)
        answer = ProduceAnswer(client, route, log, place, len(frame), started_s, self._statistics)
        deadline_s = deadline_of(route.timeout_ms, started_s)
        try:
            request = log.prepare(records, answer, route.acks, deadline_s)
        except FirnError as error:
            answer.expire(error)
            return answer
        if request is None:
            return None
        self._prepared.setdefault(log.keeper, []).append(request)
        return answer

    def submit(self) -> None:
        """Gives everything that was prepared to storage."""
        if self._prepared:
            if self._inline is None:
                self._inline = InlineAppends(asyncio.get_running_loop())
            prepared, self._prepared = self._prepared, {}
            for keeper, requests in prepared.items():
                keeper.submit(requests, self._inline)

    def wake(self) -> None:
        """Tells fetches that wait for what was appended."""
        if self._inline is not None:
            self._inline.wake()


def _refusal_of(
    error: BaseException, route: ProduceRoute, correlation_id: int, index: int
) -> tuple[bytes, int]:
    """The answer that says why nothing was stored, and its error code."""
    template = route.template
    shown = shown_shard(route.topic.name, index)
    known = error if isinstance(error, FirnError) else StorageFailed(shown, error)
    if isinstance(known, ShardError):
        known.call(shown)
    partition = refused(index, known)
    topic = TopicProduceResponse(
        name=template.topic.name,
        topic_id=template.topic.topic_id,
        partition_responses=[partition],
    )
    learned = template.header
    header = RequestHeader(
        api_key=learned.api_key,
        api_version=learned.api_version,
        correlation_id=correlation_id,
        client_id=learned.client_id,
    )
    parts = encode_response(header, ProduceResponse(responses=[topic]))
    return b"".join(parts), partition.error_code  # type: ignore[arg-type]
