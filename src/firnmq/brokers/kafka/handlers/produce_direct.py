"""A produce request that arrives alone, with one small batch: answered before all else is done.

The request is read where it was received, its batch is written from there, and the answer is sent
before those who wait for the batch are woken and before anything is counted. A node that has little
to do spends most of a request's time on fetching code and data into the processor's caches, so what
counts is how little of both it touches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import perf_counter
from typing import NamedTuple

from firnmq.adapter import EngineStorageAdapter, Topic, shown_shard
from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.protocol import RequestHeader, encode_response
from firnmq.brokers.kafka.protocol.hot.produce_template import ProduceTemplate
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from firnmq.brokers.kafka.statistics import ApiStatistics
from firnmq.engines import NOT_TAKEN, DirectLog
from firnmq.errors import FirnError, ShardError, StorageFailed

_NO_OFFSET = -1


class ProduceRoute(NamedTuple):
    """Where requests that fit a template go, as long as the topic is this one."""

    template: ProduceTemplate
    topic: Topic
    driver: EngineStorageAdapter


class DirectProduce:
    """One client's requests that fit its route. Call `take`; send the answer; call `finish`."""

    __slots__ = (
        *("_error_code", "_log", "_logs", "_loop", "_route", "_started_s", "_statistics"),
        "_topics",
    )

    def __init__(
        self,
        topics: Mapping[str, Topic],
        statistics: ApiStatistics,
        route: ProduceRoute,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`topics` are those that there are now, whenever one looks."""
        self._topics = topics
        self._statistics = statistics
        self._route = route
        self._loop = loop
        self._logs: dict[int, DirectLog] = {}
        """By partition."""
        self._log: DirectLog
        """Where the request that was taken last went."""
        self._started_s = 0.0
        self._error_code = 0

    def take(self, buffer: bytearray, view: memoryview, size: int) -> bytes | None:
        """Carries out the one request that the first `size` bytes of the buffer are.

        Returns the answer, which is empty if the client wants none; None if the request must go
        another way, and then nothing has changed.
        """
        started_s = perf_counter()
        template, topic, _ = self._route
        matched = template.match_received(buffer, size)
        # A topic that was changed is another object.
        if matched is None or self._topics.get(topic.name) is not topic:
            return None
        correlation_id, index, start, end = matched
        log = self._logs.get(index)
        if log is None:
            log = self._open(topic, index)
            if log is None:
                return None
        try:
            base_offset = log.append(buffer, view[start:end], start)
        except FirnError as error:
            answer, self._error_code = refusal_of(error, template, correlation_id, index)
        else:
            if base_offset == NOT_TAKEN:
                if not log.is_current:
                    del self._logs[index]
                return None
            start_offset = log.log.view.start_offset
            answer = template.response(correlation_id, index, base_offset, start_offset)
            self._error_code = 0
        self._log = log
        self._started_s = started_s
        return answer if template.acks != 0 else b""

    def finish(self) -> None:
        """What has to be done once the client has its answer."""
        took_s = perf_counter() - self._started_s
        self._log.finish(took_s, self._loop)
        self._statistics.add(took_s, self._error_code)

    def _open(self, topic: Topic, index: int) -> DirectLog | None:
        if not 0 <= index < topic.shard_count:
            return None
        log = self._route.driver.direct_log(topic.shard_name(index))
        if log is not None:
            self._logs[index] = log
        return log


def refusal_of(
    error: BaseException, template: ProduceTemplate, correlation_id: int, index: int
) -> tuple[bytes, int]:
    """The answer that says why nothing was stored, and its error code."""
    shown = shown_shard(template.topic, index)
    known = error if isinstance(error, FirnError) else StorageFailed(shown, error)
    if isinstance(known, ShardError):
        known.call(shown)
    code = code_of(known)
    partition = PartitionProduceResponse(
        index=index, error_code=code, base_offset=_NO_OFFSET, error_message=str(known)
    )
    topic = TopicProduceResponse(name=template.topic, partition_responses=[partition])
    learned = template.header
    header = RequestHeader(
        api_key=learned.api_key,
        api_version=learned.api_version,
        correlation_id=correlation_id,
        client_id=learned.client_id,
    )
    parts = encode_response(header, ProduceResponse(responses=[topic]))
    return b"".join(parts), code  # type: ignore[arg-type]
