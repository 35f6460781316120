"""A node: one data directory served to Kafka clients, and to operators by HTTP, until stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from firnmq.brokers.kafka.broker import KafkaBroker
from firnmq.brokers.kafka.configs import LOG_DIRS, REPLICATION_FACTOR
from firnmq.brokers.kafka.expiry import OffsetExpiry
from firnmq.brokers.kafka.forwarding import OPERATION, CoordinatorForwarding, OtherNodes
from firnmq.brokers.kafka.groups import GroupCoordinator
from firnmq.brokers.kafka.nodes import ClusterNodes
from firnmq.brokers.kafka.offsets import GroupOffsets, KvGroupStore
from firnmq.brokers.kafka.producer_ids import ProducerIds
from firnmq.brokers.kafka.quotas.store import QuotaStore
from firnmq.brokers.kafka.spread_offsets import SpreadOffsets
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.kafka.topic_names import TopicNames
from firnmq.brokers.kafka.transaction_gate import TransactionGate
from firnmq.brokers.kafka.transactions import KvTransactionStore, TransactionCoordinator
from firnmq.brokers.security import Authenticator, UserStore
from firnmq.brokers.security.acl import Authorizer, RuleStore
from firnmq.brokers.security.principal import CertificateNames
from firnmq.brokers.security.users import MetaUserRows
from firnmq.errors import CannotListen
from firnmq.eventlog import EventLogger
from firnmq.lake.plans.wire import HTTP_URL
from firnmq.nodefile import (
    NodeAddress,
    joined_address,
    reachable_host,
    remove_node_file,
    write_node_file,
)
from firnmq.server.admin.http.listener import AdminListener
from firnmq.server.admin.http.token import AdminToken, admin_token, check_token_file
from firnmq.server.admin.parts import AnswerCommand, NodeParts
from firnmq.server.descriptors import DescriptorShares, descriptor_limit, share_out, within
from firnmq.server.local import LocalStore
from firnmq.server.member import ClusterMember
from firnmq.server.processes.place import Place
from firnmq.server.settings import NodeConfig
from firnmq.server.sockets import taken_port

if TYPE_CHECKING:
    import ssl

Served = TypeVar("Served", bound=AbstractAsyncContextManager[Any])
_log = EventLogger("node")


class Node:
    """An async context manager: serving between enter and exit."""

    def __init__(
        self,
        path: Path,
        config: NodeConfig | None = None,
        answer_command: AnswerCommand | None = None,
        place: Place | None = None,
    ) -> None:
        """`place`: which of several processes of the machine this is, by default the only one."""
        self._path = path
        self._place = place
        self._answer_command = answer_command
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
        shares = share_out(descriptor_limit(), self.config)
        config = self.config = within(shares, self.config)
        tls, names = self._tls(), self._certificate_names()
        if config.admin.enabled:
            check_token_file(config.admin)
            self.admin = self._admin_listener(config)
            self._stack.push_async_callback(self.admin.stop)
        local = self._open_store()
        member = local.member
        local.offset_rows.limits = config.kafka.groups.offset_limits
        coordinator = await self._stack.enter_async_context(_coordinator(local, config))
        storage, offsets = KafkaStorage(local.manager), GroupOffsets(local.offsets)
        producer_ids = ProducerIds(local.kv, None if member is None else local.meta)
        others = _other_nodes(member, local)
        transactions = TransactionCoordinator(
            KvTransactionStore(local.offset_rows) if others is None else others.spread,
            storage,
            producer_ids.take,
            clock=local.clock,
            config=config.kafka.transactions,
            deliver=None if others is None else others.spread.deliver,
        )
        if others is not None:
            others.serve_transactions(storage, transactions)
        await self._stack.enter_async_context(transactions)
        expiry = OffsetExpiry(
            offsets,
            coordinator,
            transactions,
            local.catalog,
            clock=local.clock,
            config=config.kafka.groups,
        )
        await self._stack.enter_async_context(expiry)
        users, rules = self._users(local), RuleStore(local.meta, local.cache)
        self.broker = KafkaBroker(
            storage,
            config=config.kafka,
            coordinator=coordinator,
            group_offsets=offsets,
            producer_ids=producer_ids,
            transaction_coordinator=transactions,
            clock=local.clock,
            quotas=QuotaStore(local.meta, local.cache),
            users=users,
            authenticator=self._authenticator(users),
            tls=tls,
            certificate_names=names,
            authorizer=self._authorizer(rules),
            shown=self._shown(),
            others=None if others is None else others.known,
        )
        if others is not None:
            others.serve_requests(self.broker)
        await self.broker.start()
        self._stack.push_async_callback(self._stop_serving)
        _log_descriptors(shares)
        if self.admin is not None:
            parts = NodeParts(
                config=config,
                local=local,
                storage=storage,
                broker=self.broker,
                coordinator=coordinator,
                offsets=offsets,
                users=users,
                rules=rules,
                started_ms=local.clock.now_ms(),
                place=self._place,
                answer_command=self._answer_command,
                stopping=self.admin.stopping,
            )
            self.admin.start(parts, self._admin_token(config))
        if member is not None:
            await self._register(member, local)
        self._write_address()

    def _admin_token(self, config: NodeConfig) -> AdminToken | None:
        where = self._path if self._place is None else self._place.directory
        token = admin_token(where, config.admin, config.security)
        if token is not None:
            _log.info("admin_token", path=token.path.resolve(), is_new=token.is_new)
        return token

    async def _register(self, member: ClusterMember, local: LocalStore) -> None:
        """Lists the node among those that clients and other nodes are sent to."""
        address = self.broker.address
        kafka = joined_address(reachable_host(address.host).strip("[]"), address.port)
        http = "" if self.admin is None else self.admin.url
        loop = asyncio.get_running_loop()

        def superseded() -> None:
            """Another process has become this node: this one stops, as if it was told to."""
            os.kill(os.getpid(), signal.SIGTERM)

        await loop.run_in_executor(
            None, member.register, local.clock, local.health, kafka, http, superseded
        )

        async def unregister() -> None:
            await loop.run_in_executor(None, member.unregister)

        self._stack.push_async_callback(unregister)

    def _users(self, local: LocalStore) -> UserStore:
        """A node that is alone keeps its users itself. Those of a cluster are in the metadata, and
        any node may remove one."""
        if local.member is None:
            return UserStore(local.kv)
        rows, loop = MetaUserRows(local.meta, local.cache), asyncio.get_running_loop()
        rows.on_removed = lambda name: _soon(loop, self._close_user, name)
        return UserStore(rows)

    def _close_user(self, name: str) -> None:
        self.broker.close_user(name)

    def _open_store(self) -> LocalStore:
        config, member = self.config, None
        if config.cluster.enabled:
            member = ClusterMember(config.cluster, config.meta, config.kafka.node_id)
        local = LocalStore(
            self._path,
            config=config.store,
            node=config.kafka.node_id,
            tiering=config.tiering,
            member=member,
        )
        self._stack.callback(local.close)
        return local

    def _admin_listener(self, config: NodeConfig) -> AdminListener:
        """Bound. If its port cannot be had, the error also says whether the Kafka port can."""
        kafka = config.kafka
        try:
            return AdminListener(
                config.admin, None if self._place is None else self._place.listening
            )
        except CannotListen as error:
            other = taken_port("kafka", kafka.host, kafka.port)
            if other is None:
                raise
            raise CannotListen(
                error.setting, error.host, error.port, error.cause, other=other
            ) from error

    def _shown(self) -> dict[str, str]:
        """What clients that describe the broker are told beside its settings."""
        shown = {LOG_DIRS: str(self._path)}
        if self.config.cluster.enabled:
            shown[REPLICATION_FACTOR] = str(self.config.cluster.replication_factor)
        return shown if self.admin is None else {HTTP_URL: self.admin.url, **shown}

    async def _stop_serving(self) -> None:
        """Both listeners stop together while the store is open: clients of one do not hold up the
        other."""
        async with asyncio.TaskGroup() as stopping:
            stopping.create_task(self.broker.stop())
            if self.admin is not None:
                stopping.create_task(self.admin.stop())

    def _write_address(self) -> None:
        """Writes the node file, in which commands find the directory's node."""
        kafka = self.broker.address
        http = None if self.admin is None else self.admin.local_url
        token = None if self.admin is None else self.admin.token
        address = NodeAddress(
            http=http,
            kafka=f"{reachable_host(kafka.host)}:{kafka.port}",
            pid=os.getpid(),
            token_file=None if token is None else str(token.path.resolve()),
        )
        write_node_file(self._path, address)
        self._stack.callback(remove_node_file, self._path)

    def _tls(self) -> ssl.SSLContext | None:
        security = self.config.security
        if security.tls_certificate is None:
            return None
        from firnmq.brokers.security.tls import server_context

        return server_context(security.tls_certificate, security.tls_key, security.tls_client_ca)

    def _certificate_names(self) -> CertificateNames | None:
        security = self.config.security
        names = CertificateNames(security.certificate_names)  # Checked in any case.
        return None if security.tls_client_ca is None else names

    def _authorizer(self, rules: RuleStore) -> Authorizer | None:
        security = self.config.security
        if not security.authorization:
            return None
        if not rules.index.rules and not security.super_users:
            _log.warning(
                "no_rules",
                hint="no client may do anything; firn acl add, or super_users, allows some",
            )
        return Authorizer(rules, security.super_users)

    def _authenticator(self, users: UserStore) -> Authenticator | None:
        mechanisms = self.config.security.sasl_mechanisms
        if not mechanisms:
            return None
        if not users.names():
            _log.warning("no_users", hint="no client can log in; firn user add NAME adds a user")
        # A login that waits must not run into the time-out for logins.
        return Authenticator(
            users, mechanisms, wait_max_s=self.config.kafka.handshake_timeout_s / 2
        )

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()


class _OtherNodes:
    """What the Kafka broker knows of the other nodes, and what it tells them."""

    def __init__(self, member: ClusterMember, local: LocalStore) -> None:
        cluster = member.cluster
        self._member = member
        self.nodes = ClusterNodes(cluster, member.cluster_id)
        self.forwarding = CoordinatorForwarding(cluster, self.nodes)
        self.spread = SpreadOffsets(cluster, self.nodes, local.offset_rows)

    @property
    def known(self) -> OtherNodes:
        return OtherNodes(self.nodes, self.forwarding, self.spread)

    def serve_transactions(
        self, storage: KafkaStorage, transactions: TransactionCoordinator
    ) -> None:
        storage.gate = gate = TransactionGate(self._member.cluster, self.nodes, transactions)
        others = self._member.service.others
        others |= gate.serve(storage.led_driver)
        others |= self.spread.serve(transactions)

    def serve_requests(self, broker: KafkaBroker) -> None:
        self._member.service.others[OPERATION] = self.forwarding.served_by(broker.serve_forwarded)


def _coordinator(local: LocalStore, config: NodeConfig) -> GroupCoordinator:
    return GroupCoordinator(
        KvGroupStore(local.offset_rows),
        TopicNames(local.catalog),
        config=config.kafka.groups,
        wall_clock=local.clock,
    )


def _other_nodes(member: ClusterMember | None, local: LocalStore) -> _OtherNodes | None:
    """None if the node is alone."""
    return None if member is None else _OtherNodes(member, local)


def _soon(loop: asyncio.AbstractEventLoop, function: Callable[[str], object], name: str) -> None:
    with suppress(RuntimeError):  # The loop has ended: nothing is left to do.
        loop.call_soon_threadsafe(function, name)


def _log_descriptors(shares: DescriptorShares) -> None:
    _log.info(
        "descriptors",
        limit=shares.limit,
        files=shares.open_files,
        kafka_connections=shares.kafka_connections,
        http_connections=shares.http_connections,
    )


async def serve(
    node: Served, ready: Callable[[Served], None], stopping_began: Callable[[], None] = lambda: None
) -> signal.Signals:
    """Runs a node until SIGTERM or SIGINT and returns which came first. Requests in progress are
    answered before it ends."""
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[signal.Signals] = loop.create_future()

    def stop(number: signal.Signals) -> None:
        if not stopping.done():
            stopping.set_result(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    async with node:
        ready(node)
        await stopping
        stopping_began()
    return stopping.result()
