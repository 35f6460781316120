"""Produce requests that need not wait for anything to be queued: no coroutine, no future.

A request like the one before it, for a shard that is open and takes more, is checked and accepted
while its bytes are being received, and what arrived together is handed to storage together. Every
other request goes the way of all requests, `ProduceHandler`.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Protocol

from firnmq.adapter import EngineStorageAdapter
from firnmq.brokers.kafka.handlers.produce_direct import DirectProduce, ProduceRoute, refusal_of
from firnmq.brokers.kafka.protocol import Part, RequestHeader
from firnmq.brokers.kafka.protocol.hot.produce_template import ProduceTemplate
from firnmq.brokers.kafka.protocol.messages.produce_fetch import ProduceRequest
from firnmq.brokers.kafka.statistics import ApiStatistics
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.disk import Notice
from firnmq.engines import Append, Appended
from firnmq.errors import FirnError
from firnmq.record.batch import ATTRIBUTE_TRANSACTIONAL, attributes_of


class Client(Protocol):
    """What a connection is for this module."""

    loop: asyncio.AbstractEventLoop
    produce_route: ProduceRoute | None
    produce_direct: DirectProduce | None

    def answer_ready(self) -> None:
        """One of the answers that the client waits for is ready."""


class ProduceAnswer(Notice[Appended]):
    """The answer to one request; it becomes ready when its batch is as durable as asked."""

    __slots__ = (
        *("_client", "_correlation_id", "_index", "_started_s", "_statistics", "_template"),
        *("is_ready", "parts", "request", "size_bytes"),
    )

    def __init__(
        self,
        client: Client,
        template: ProduceTemplate,
        correlation_id: int,
        index: int,
        size_bytes: int,
        started_s: float,
        statistics: ApiStatistics,
    ) -> None:
        super().__init__(client.loop)
        self._client = client
        self._template = template
        self._correlation_id = correlation_id
        self._index = index
        self._statistics = statistics
        self._started_s = started_s
        self.size_bytes = size_bytes
        self.parts: list[Part] | None = None
        self.is_ready = False
        self.request: Append | None = None
        """What was accepted; it tells where the log begins."""

    def settled(self, value: Appended | None, error: BaseException | None) -> None:
        template, code = self._template, 0
        if value is not None:
            start_offset = 0 if self.request is None else self.request.log.view.start_offset
            answer = template.response(
                self._correlation_id, self._index, value.base_offset, start_offset
            )
        else:
            assert error is not None
            answer, code = refusal_of(error, template, self._correlation_id, self._index)
        self.request = None  # Else the bytes would stay until the client has been answered.
        if template.acks != 0:  # Else the client expects no answer, not even for an error.
            self.parts = [answer]
        self._statistics.add(perf_counter() - self._started_s, code)
        self.is_ready = True
        self._client.answer_ready()


class QuickProduce:
    """Accepts requests on the event loop and hands them over in groups."""

    def __init__(self, storage: KafkaStorage, statistics: ApiStatistics) -> None:
        self._storage = storage
        self._statistics = statistics
        self._accepted: dict[EngineStorageAdapter, list[Append]] = {}

    def learn(
        self, frame: bytearray, header: RequestHeader, request: ProduceRequest, client: Client
    ) -> None:
        """Remembers a request that was parsed, for the client's next one."""
        client.produce_route = client.produce_direct = None
        template = ProduceTemplate.learn(frame, header, request)
        if template is None:
            return
        topic = self._storage.find(template.topic)
        if topic is not None:
            driver = self._storage.manager.driver(topic.config.storage_type)
            if isinstance(driver, EngineStorageAdapter):
                client.produce_route = route = ProduceRoute(template, topic, driver)
                client.produce_direct = DirectProduce(
                    self._storage.catalog.by_name, self._statistics, route, client.loop
                )

    def begin(self, frame: bytearray, client: Client) -> ProduceAnswer | None:
        """Accepts a request, or refuses its batch; None if it must go the other way.

        What was accepted is stored only once `hand_over` has been called.
        """
        route = client.produce_route
        if route is None:
            return None
        template, topic, driver = route
        matched = template.match(frame)
        if matched is None or self._storage.find(template.topic) is not topic:
            return None
        correlation_id, index, records = matched
        if not 0 <= index < topic.shard_count:
            return None
        if attributes_of(records) & ATTRIBUTE_TRANSACTIONAL:
            return None
        answer = ProduceAnswer(
            client, template, correlation_id, index, len(frame), perf_counter(), self._statistics
        )
        try:
            request = driver.accept_raw(topic.shard_name(index), records, answer)
        except FirnError as error:
            answer.settled(None, error)
            return answer
        if request is None:
            return None
        answer.request = request
        self._accepted.setdefault(driver, []).append(request)
        return answer

    def hand_over(self) -> None:
        """Gives everything that was accepted to storage."""
        if self._accepted:
            accepted, self._accepted = self._accepted, {}
            for driver, requests in accepted.items():
                driver.hand_over(requests)
