"""Quotas at work: what a request costs, what its answer says of it, and who waits how long."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from time import perf_counter
from typing import Any, Final

from msgspec import structs

from firnmq.brokers.kafka.protocol import ErrorCode, Message, RequestHeader
from firnmq.brokers.kafka.protocol.messages import admin, produce_fetch
from firnmq.brokers.kafka.quotas.limiter import ClientQuotas, QuotaLimiter
from firnmq.brokers.kafka.quotas.model import Quota
from firnmq.brokers.kafka.quotas.timing import Timed

_STRICT_SINCE: Final[dict[type[Message], int]] = {
    admin.CreateTopicsRequest: 6,
    admin.DeleteTopicsRequest: 5,
    admin.CreatePartitionsRequest: 3,
}
"""Versions whose clients know that a request may be refused because of a quota."""
_TEXT = "The controller mutation quota is exceeded; try again later."


class Throttle:
    """Owned by the event loop. Clients are any objects that can be keys."""

    def __init__(self, limiter: QuotaLimiter) -> None:
        self._limiter = limiter
        self._muted_until_s: dict[object, float] = {}
        self._waiting: dict[object, asyncio.Event] = {}
        """Clients whose next request waits."""

    def quotas_of(self, principal: str, header: RequestHeader) -> ClientQuotas | None:
        return self._limiter.of(principal.partition(":")[2], header.client_id or "")

    def admits(self, address: str) -> bool:
        """Whether the quota of an address has room for another connection."""
        return self._limiter.connection_wait_s(address) <= 0.0

    # Muted connections ----------------------------------------------------------------------------

    def mute(self, client: object, wait_s: float) -> None:
        """Begins no request of the client for so long. What it sends piles up within its limits,
        and then is not read."""
        if wait_s > 0.0:
            until_s = asyncio.get_running_loop().time() + wait_s
            self._muted_until_s[client] = max(until_s, self._muted_until_s.get(client, 0.0))

    def is_muted(self, client: object) -> bool:
        return client in self._muted_until_s

    async def wait_unmuted(self, client: object) -> None:
        """Returns when the time is over, or the client is released."""
        wait_s = self._muted_until_s.pop(client, 0.0) - asyncio.get_running_loop().time()
        if wait_s <= 0.0:
            return
        released = self._waiting[client] = asyncio.Event()
        with suppress(TimeoutError):
            await asyncio.wait_for(released.wait(), wait_s)
        self._waiting.pop(client, None)

    def release(self, client: object) -> None:
        """The connection ends: there is nothing to slow down any more."""
        self._muted_until_s.pop(client, None)
        waiting = self._waiting.get(client)
        if waiting is not None:
            waiting.set()

    # Requests -------------------------------------------------------------------------------------

    async def answer(
        self,
        quotas: ClientQuotas,
        header: RequestHeader,
        request: Message,
        work: Coroutine[Any, Any, Message],
        client: object,
    ) -> Message:
        """Carries out a request unless a quota has it refused, and counts what it took."""
        wait_s = 0.0
        mutations = _mutations(request)
        if mutations:
            owed_s = quotas.take(Quota.MUTATIONS, 0.0)
            is_strict = header.api_version >= _STRICT_SINCE[type(request)]
            if owed_s > 0.0 and is_strict:
                work.close()
                return told(_refused(request), owed_s)
            wait_s = quotas.take(Quota.MUTATIONS, mutations)
            wait_s = 0.0 if is_strict else wait_s  # It is told with the next one.
        timed = Timed(perf_counter)
        response = await timed.run(work)
        wait_s = max(wait_s, quotas.take(Quota.REQUEST_TIME, 100.0 * timed.spent_s))
        if isinstance(response, produce_fetch.FetchResponse) and quotas.has(Quota.FETCH_BYTES):
            wait_s = max(wait_s, quotas.take(Quota.FETCH_BYTES, _record_bytes(response)))
        self.mute(client, wait_s)
        return told(response, wait_s)

    def produced(self, quotas: ClientQuotas, size: int, spent_s: float, client: object) -> float:
        """Counts a produce request; the seconds its client is told to wait."""
        wait_s = quotas.take(Quota.PRODUCE_BYTES, size)
        wait_s = max(wait_s, quotas.take(Quota.REQUEST_TIME, 100.0 * spent_s))
        self.mute(client, wait_s)
        return wait_s


def told(response: Any, wait_s: float) -> Message:
    """The answer with the time to wait."""
    if wait_s > 0.0 and hasattr(response, "throttle_time_ms"):
        milliseconds = max(round(wait_s * 1_000), 1)
        response = structs.replace(response, throttle_time_ms=milliseconds)
    message: Message = response
    return message


def _record_bytes(response: produce_fetch.FetchResponse) -> int:
    total = 0
    for topic in response.responses:
        for partition in topic.partitions:
            records: Any = partition.records
            if isinstance(records, list | tuple):
                total += sum(len(each) for each in records)
            elif records is not None:
                total += len(records)
    return total


def _mutations(request: Message) -> int:
    """Partitions that a request makes or removes, as far as it tells."""
    if getattr(request, "validate_only", False):
        return 0
    match request:
        case admin.CreateTopicsRequest():
            return sum(
                max(each.num_partitions, len(each.assignments), 1) for each in request.topics
            )
        case admin.DeleteTopicsRequest():
            return len(request.topics) + len(request.topic_names)
        case admin.CreatePartitionsRequest():
            return len(request.topics)
    return 0


def _refused(request: Message) -> Message:
    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    match request:
        case admin.CreateTopicsRequest():
            return admin.CreateTopicsResponse(
                topics=[
                    admin.CreatableTopicResult(name=each.name, error_code=code, error_message=_TEXT)
                    for each in request.topics
                ]
            )
        case admin.DeleteTopicsRequest():
            named = [
                admin.DeletableTopicResult(name=name, error_code=code, error_message=_TEXT)
                for name in request.topic_names
            ]
            given = [
                admin.DeletableTopicResult(
                    name=each.name, topic_id=each.topic_id, error_code=code, error_message=_TEXT
                )
                for each in request.topics
            ]
            return admin.DeleteTopicsResponse(responses=named + given)
        case admin.CreatePartitionsRequest():
            return admin.CreatePartitionsResponse(
                results=[
                    admin.CreatePartitionsTopicResult(
                        name=each.name, error_code=code, error_message=_TEXT
                    )
                    for each in request.topics
                ]
            )
    raise TypeError(type(request).__name__)
