"""The overview: the node's status, pushed every two seconds with the newest samples."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec

from firnmq.brokers.kafka.configs import UNCHANGEABLE, key_of
from firnmq.server.admin.console.documents import OptionInfo, Overview
from firnmq.server.admin.console.samples import Samples
from firnmq.server.admin.endpoint import Call
from firnmq.server.admin.parts import NodeParts
from firnmq.server.documents import NodeStatus, Readiness


class OverviewView:
    def __init__(
        self,
        parts: NodeParts,
        samples: Samples,
        status: Callable[[], Awaitable[NodeStatus]],
        readiness: Callable[[], Awaitable[Readiness]],
    ) -> None:
        self._parts = parts
        self._samples = samples
        self._status = status
        self._readiness = readiness

    async def events(self, call: Call) -> AsyncGenerator[bytes, None]:
        """The whole half hour first, then what is new."""
        seen_ms = call.number("since_ms") or 0
        while not self._parts.stopping.is_set():
            found = await self._look(seen_ms)
            yield msgspec.json.encode(found)
            seen_ms = max((each.time_ms for each in found.samples), default=seen_ms)
            await self._samples.wait_for_next()

    async def _look(self, since_ms: int) -> Overview:
        return Overview(
            status=await self._status(),
            readiness=await self._readiness(),
            samples=await self._samples.since(since_ms),
        )


class OptionView:
    """The options of a topic with what they are for."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts

    async def all(self, call: Call) -> list[OptionInfo]:
        options = self._parts.storage.topic(call.path["topic"]).config.options()
        defaults = self._parts.config.topic_defaults.options()
        found = []
        for name, value in options.items():
            key = key_of(name)
            if key is not None:  # The rest is what is kept for Kafka's clients, without effect.
                found.append(
                    OptionInfo(
                        name=name,
                        value=value,
                        default=defaults.get(name),
                        text=key.documentation,
                        is_fixed=name in UNCHANGEABLE,
                    )
                )
        return found
