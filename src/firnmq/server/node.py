"""A node: one data directory served to Kafka clients, and to operators by HTTP, until stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from firnmq.brokers.kafka.broker import KafkaBroker
from firnmq.brokers.kafka.groups import GroupCoordinator
from firnmq.brokers.kafka.offsets import GroupOffsets, KvGroupStore
from firnmq.brokers.kafka.producer_ids import ProducerIds
from firnmq.brokers.kafka.security import Authenticator, UserStore
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.kafka.transactions import KvTransactionStore, TransactionCoordinator
from firnmq.eventlog import EventLogger
from firnmq.lake.plans.wire import HTTP_URL
from firnmq.server.admin.listener import AdminListener
from firnmq.server.admin.parts import NodeParts
from firnmq.server.local import LocalStore
from firnmq.server.settings import NodeConfig

if TYPE_CHECKING:
    import ssl

_log = EventLogger("node")


class Node:
    """An async context manager: serving between enter and exit."""

    def __init__(self, path: Path, config: NodeConfig | None = None) -> None:
        self._path = path
        self.config = config or NodeConfig()
        self._stack = AsyncExitStack()
        self.broker: KafkaBroker
        self.admin: AdminListener | None = None

    async def __aenter__(self) -> Node:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _start(self) -> None:
        config = self.config
        tls = self._tls()
        if config.admin.enabled:
            self.admin = AdminListener(config.admin)
            self._stack.push_async_callback(self.admin.stop)
        local = LocalStore(
            self._path, config=config.store, node=config.kafka.node_id, tiering=config.tiering
        )
        self._stack.callback(local.close)
        coordinator = GroupCoordinator(KvGroupStore(local.kv), config=config.kafka.groups)
        await self._stack.enter_async_context(coordinator)
        storage, offsets = KafkaStorage(local.manager), GroupOffsets(local.offsets)
        producer_ids = ProducerIds(local.kv)
        transactions = TransactionCoordinator(
            KvTransactionStore(local.kv),
            storage,
            producer_ids.take,
            clock=local.clock,
            config=config.kafka.transactions,
        )
        await self._stack.enter_async_context(transactions)
        users = UserStore(local.kv)
        self.broker = KafkaBroker(
            storage,
            config=config.kafka,
            coordinator=coordinator,
            group_offsets=offsets,
            producer_ids=producer_ids,
            transaction_coordinator=transactions,
            clock=local.clock,
            authenticator=self._authenticator(users),
            tls=tls,
            shown={} if self.admin is None else {HTTP_URL: self.admin.url},
        )
        await self.broker.start()
        self._stack.push_async_callback(self.broker.stop)
        if self.admin is not None:
            parts = NodeParts(
                config=config,
                local=local,
                storage=storage,
                broker=self.broker,
                coordinator=coordinator,
                offsets=offsets,
                users=users,
                started_ms=local.clock.now_ms(),
            )
            self.admin.start(parts)
            # Stopped first, while what it works on is still there; stopping twice is no error.
            self._stack.push_async_callback(self.admin.stop)

    def _tls(self) -> ssl.SSLContext | None:
        security = self.config.security
        if security.tls_certificate is None:
            return None
        from firnmq.brokers.kafka.security.tls import server_context

        return server_context(security.tls_certificate, security.tls_key, security.tls_client_ca)

    def _authenticator(self, users: UserStore) -> Authenticator | None:
        mechanisms = self.config.security.sasl_mechanisms
        if not mechanisms:
            return None
        if not users.names():
            _log.warning("no_users", hint="firn user add NAME makes one; nobody can log in")
        return Authenticator(users, mechanisms)

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
