"""A node: one data directory served to Kafka clients until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from firnmq.brokers.kafka.broker import KafkaBroker
from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.groups import GroupCoordinator
from firnmq.brokers.kafka.offsets import GroupOffsets, KvGroupStore
from firnmq.brokers.kafka.producer_ids import ProducerIds
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.config import StoreConfig
from firnmq.server.local import LocalStore


class Node:
    """An async context manager: serving between enter and exit."""

    def __init__(
        self, path: Path, *, store_config: StoreConfig | None = None, kafka: KafkaConfig
    ) -> None:
        self._path = path
        self._store_config = store_config
        self._kafka = kafka
        self._stack = AsyncExitStack()
        self.broker: KafkaBroker

    async def __aenter__(self) -> Node:
        local = LocalStore(self._path, config=self._store_config)
        self._stack.callback(local.close)
        try:
            coordinator = GroupCoordinator(KvGroupStore(local.kv), config=self._kafka.groups)
            await self._stack.enter_async_context(coordinator)
            self.broker = KafkaBroker(
                KafkaStorage(local.manager),
                config=self._kafka,
                coordinator=coordinator,
                group_offsets=GroupOffsets(local.offsets),
                producer_ids=ProducerIds(local.kv),
                clock=local.clock,
            )
            await self.broker.start()
            self._stack.push_async_callback(self.broker.stop)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()


async def serve(node: Node, ready: Callable[[Node], None]) -> None:
    """Runs a node until SIGTERM or SIGINT; begun requests are answered before it ends."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with node:
        ready(node)
        await stopping.wait()
