"""The last half hour of a node in numbers: what the curves of the overview are drawn from."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final

import msgspec

from firnmq.cluster.peers import Served
from firnmq.errors import FirnError
from firnmq.server.admin.console.documents import Sample
from firnmq.server.admin.others import OtherNodes
from firnmq.server.admin.parts import NodeParts
from firnmq.server.processes.place import Place

SAMPLE_MS: Final = 2_000
_SAMPLES_MAX: Final = 900
_SAMPLES: Final = "samples"
_TIMEOUT_S: Final = 2.0


class Samples:
    """Takes a sample every two seconds, at whole multiples of them, so that those of several
    processes can be added up. Owned by the event loop."""

    def __init__(self, parts: NodeParts, others: OtherNodes | None) -> None:
        self._parts = parts
        self._others = None if parts.place is None else others
        self._place: Place | None = parts.place
        self._taken: deque[Sample] = deque(maxlen=_SAMPLES_MAX)
        self._before = self._counters()
        self._task: asyncio.Task[None] | None = None
        if self._others is not None:
            self._others.serve(_SAMPLES, self._serve)

    def start(self) -> None:
        """Begins to take samples, until the HTTP listener stops."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def since(self, time_ms: int) -> list[Sample]:
        """Samples after a moment, of all processes of the machine together."""
        own = [each for each in self._taken if each.time_ms > time_ms]
        if self._others is None or self._place is None:
            return own
        nodes = [node for node in self._place.nodes if node != self._others.node]
        answers = await self._others.ask_all(nodes, _SAMPLES, _decoded, timeout_s=_TIMEOUT_S)
        by_time = {each.time_ms: each for each in own}
        for answer in answers.values():
            if not isinstance(answer, FirnError):
                for each in answer:
                    if each.time_ms in by_time:
                        by_time[each.time_ms] = _sum(by_time[each.time_ms], each)
        return list(by_time.values())

    async def wait_for_next(self) -> None:
        """Returns shortly after the next sample, or when the listener stops."""
        wait_s = (SAMPLE_MS - self._parts.local.clock.now_ms() % SAMPLE_MS + 50) / 1000
        try:
            await asyncio.wait_for(self._parts.stopping.wait(), wait_s)
        except TimeoutError:
            return

    async def _run(self) -> None:
        while not self._parts.stopping.is_set():
            await self.wait_for_next()
            self._take()

    def _take(self) -> None:
        parts, now = self._parts, self._counters()
        seconds = max(now[0] - self._before[0], 0.001)
        rates = [(new - old) / seconds for new, old in zip(now, self._before, strict=True)]
        self._before = now
        at_ms = parts.local.clock.now_ms()
        self._taken.append(
            Sample(
                time_ms=at_ms - at_ms % SAMPLE_MS,
                received_bytes_rate=round(rates[1], 1),
                sent_bytes_rate=round(rates[2], 1),
                request_rate=round(rates[3], 2),
                append_rate=round(rates[4], 2),
                fetched_record_rate=round(rates[5], 1),
                cpu_share=round(rates[6], 4),
                connection_count=parts.broker.connection_count,
                disk_free_bytes=parts.local.guard.free_bytes,
            )
        )

    def _counters(self) -> tuple[float, ...]:
        broker = self._parts.broker
        numbers = broker.statistics
        return (
            time.monotonic(),
            numbers.received_bytes,
            numbers.sent_bytes,
            sum(api.request_count for api in numbers.apis.values()),
            self._parts.local.pool_statistics().request_count,
            broker.fetched_record_count,
            time.process_time(),
        )

    async def _serve(self, _: bytes) -> Served:
        return Served(msgspec.msgpack.encode(list(self._taken)))


def _sum(first: Sample, second: Sample) -> Sample:
    return Sample(
        time_ms=first.time_ms,
        received_bytes_rate=first.received_bytes_rate + second.received_bytes_rate,
        sent_bytes_rate=first.sent_bytes_rate + second.sent_bytes_rate,
        request_rate=first.request_rate + second.request_rate,
        append_rate=first.append_rate + second.append_rate,
        fetched_record_rate=first.fetched_record_rate + second.fetched_record_rate,
        cpu_share=first.cpu_share + second.cpu_share,
        connection_count=first.connection_count + second.connection_count,
        disk_free_bytes=min(first.disk_free_bytes, second.disk_free_bytes),
    )


def _decoded(value: memoryview, raw: memoryview) -> list[Sample]:
    return msgspec.msgpack.decode(value, type=list[Sample])
