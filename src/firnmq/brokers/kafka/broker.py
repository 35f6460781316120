"""The Kafka broker: from frames to handlers, and the listener that takes connections."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from time import monotonic, perf_counter
from typing import Any

from firnmq.brokers.kafka.access.changes import AUDITED, names_of_changes
from firnmq.brokers.kafka.access.guard import Guard
from firnmq.brokers.kafka.access.table import DESCRIBE_TOPIC
from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.configs import LOG_DIRS
from firnmq.brokers.kafka.connections.codec_thread import CodecThread
from firnmq.brokers.kafka.connections.connection import KafkaConnection
from firnmq.brokers.kafka.connections.long_requests import LongRequests
from firnmq.brokers.kafka.connections.sasl import SaslSession
from firnmq.brokers.kafka.connections.sasl_gate import SaslGate
from firnmq.brokers.kafka.forwarding import (
    CoordinatorForwarding,
    ForwardedClient,
    OtherNodes,
    refuse_unreachable,
)
from firnmq.brokers.kafka.groups import GroupCoordinator
from firnmq.brokers.kafka.groups.consumer.messages import sees_all
from firnmq.brokers.kafka.handlers.acls import AclHandler
from firnmq.brokers.kafka.handlers.configs import ConfigHandler
from firnmq.brokers.kafka.handlers.consumer_groups import ConsumerGroupHandler
from firnmq.brokers.kafka.handlers.fetch import FetchHandler
from firnmq.brokers.kafka.handlers.fetch_quick import QuickFetch
from firnmq.brokers.kafka.handlers.groups import GroupHandler
from firnmq.brokers.kafka.handlers.lookup import LookupHandler
from firnmq.brokers.kafka.handlers.metadata import MetadataHandler
from firnmq.brokers.kafka.handlers.offsets import OffsetHandler
from firnmq.brokers.kafka.handlers.produce import ProduceHandler
from firnmq.brokers.kafka.handlers.produce_fast import FastProduce
from firnmq.brokers.kafka.handlers.producers import ProducerHandler
from firnmq.brokers.kafka.handlers.quotas import QuotaHandler
from firnmq.brokers.kafka.handlers.tools import ToolHandler
from firnmq.brokers.kafka.handlers.topics import TopicHandler
from firnmq.brokers.kafka.handlers.transaction_lookup import TransactionLookup
from firnmq.brokers.kafka.handlers.transactions import TransactionHandler
from firnmq.brokers.kafka.handlers.users import UserHandler
from firnmq.brokers.kafka.nodes import KafkaNodes, OneNode
from firnmq.brokers.kafka.offsets import GroupOffsets
from firnmq.brokers.kafka.producer_ids import ProducerIds
from firnmq.brokers.kafka.protocol import (
    ApiKey,
    Message,
    Part,
    RequestHeader,
    RequestTooLong,
    UnsupportedVersion,
    refuse_api_versions,
)
from firnmq.brokers.kafka.protocol.messages import (
    groups,
    produce_fetch,
)
from firnmq.brokers.kafka.quotas.limiter import ClientQuotas, QuotaLimiter
from firnmq.brokers.kafka.quotas.store import QuotaStore
from firnmq.brokers.kafka.quotas.throttle import Throttle, told
from firnmq.brokers.kafka.quotas.timing import Timed
from firnmq.brokers.kafka.routes import (
    Client,
    Handler,
    client_routes,
    consumer_routes,
    owner_of,
    routes,
    tool_routes,
)
from firnmq.brokers.kafka.statistics import BrokerStatistics
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.kafka.transactions import TransactionCoordinator
from firnmq.brokers.net.address import Address
from firnmq.brokers.net.byte_budget import MODERATE_BYTES, ByteBudget, ByteShare
from firnmq.brokers.net.frame_buffers import FrameBuffers
from firnmq.brokers.net.limit_log import LimitLog
from firnmq.brokers.net.listener import ConnectionCounter, Listener
from firnmq.brokers.net.loop_turns import Turns
from firnmq.brokers.net.memory_pressure import MemoryPressure
from firnmq.brokers.security import Authenticator
from firnmq.brokers.security.acl import Authorizer
from firnmq.brokers.security.audit import AuditLog
from firnmq.brokers.security.principal import ANONYMOUS, CertificateNames, user_principal
from firnmq.brokers.security.users import UserStore
from firnmq.clock import Clock
from firnmq.errors import CannotListen, FirnError
from firnmq.eventlog import EventLogger

_log = EventLogger("kafka")

_SWEEPS_PER_TIMEOUT = 4
_SWEEP_S_MAX = 5.0
_STOP_TIMEOUT_S = 5.0

_WAITING = (produce_fetch.FetchRequest, groups.JoinGroupRequest, groups.SyncGroupRequest)
"""Requests that may wait long for something that only this client wants to know. One that only
validates is such a request too: it changes nothing."""


class KafkaBroker:
    """Serves Kafka clients on one listener. A Dispatcher; owned by its event loop."""

    def __init__(
        self,
        storage: KafkaStorage,
        *,
        config: KafkaConfig,
        coordinator: GroupCoordinator,
        group_offsets: GroupOffsets,
        producer_ids: ProducerIds,
        transaction_coordinator: TransactionCoordinator,
        clock: Clock,
        quotas: QuotaStore,
        users: UserStore,
        authenticator: Authenticator | None = None,
        tls: ssl.SSLContext | None = None,
        certificate_names: CertificateNames | None = None,
        authorizer: Authorizer | None = None,
        audit: AuditLog | None = None,
        shown: Mapping[str, str] | None = None,
        others: OtherNodes | None = None,
    ) -> None:
        """`certificate_names`: what clients are called that show a certificate; without an
        `authorizer` all may do everything. `shown`: what clients that describe the broker are told
        beside its settings. `others`: the nodes of a cluster."""
        self._config = config
        self._connections: set[KafkaConnection] = set()
        self._left_behind: set[asyncio.Task[None]] = set()
        """Those that carry out requests of clients that are gone."""
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._authenticator = authenticator
        self._certificate_names = certificate_names
        self._authorizer = authorizer
        self.audit = audit or AuditLog()
        self.statistics = BrokerStatistics()
        self.limits = LimitLog("kafka", self.statistics.limit_hit, monotonic)
        self.budget = ByteBudget(config.total_bytes_in_flight_max)
        self._shares: dict[tuple[str, str], ByteShare] = {}
        """By address and user."""
        self._owners: dict[KafkaConnection, tuple[str, str]] = {}
        self._buffers = FrameBuffers(MODERATE_BYTES)
        self.pressure = MemoryPressure(self.budget, self._shares.values, lambda: self._connections)
        self._throttle = Throttle(QuotaLimiter(lambda: quotas.limits, monotonic))
        counter = ConnectionCounter(config, self.limits, self._throttle.admits)
        self._listener = Listener(config, counter, self._new_connection, tls)
        self._frames = CodecThread()
        self._long_requests = LongRequests(self.limits, config.frame_bytes_max)
        self.turns = turns = Turns()
        self._gate = SaslGate(config, self.statistics, self._frames, self._admitted)
        self.address = address = Address(config.advertised_host or config.host, config.port)
        self._guard = None if authorizer is None else self._new_guard(authorizer, storage)
        alone: KafkaNodes = OneNode(config.node_id, config.cluster_id, address)
        self._forwarding: CoordinatorForwarding | None
        nodes, self._forwarding, spread = others or (alone, None, None)
        self._transactions = transaction_coordinator
        self._produce = ProduceHandler(storage, transaction_coordinator, turns)
        self._fast_produce = FastProduce(storage, self.statistics.apis[ApiKey.PRODUCE])
        # A client that has not authenticated never has a route, so it begins nothing this way.
        self.begin_now, self.submit = self._fast_produce.begin, self._fast_produce.submit
        self.wake = self._fast_produce.wake
        self._fetch = fetch = FetchHandler(storage, turns)
        self._quick_fetch = QuickFetch(storage, fetch, self.statistics.apis[ApiKey.FETCH])
        self.begin_wait = self._quick_fetch.begin
        self._metadata = MetadataHandler(storage, config, nodes, turns)
        self._handlers = routes(
            fetch=fetch,
            lookup=LookupHandler(storage, turns),
            metadata_handler=self._metadata,
            group=GroupHandler(coordinator, group_offsets, turns),
            offset=OffsetHandler(
                storage, group_offsets, coordinator, clock, transaction_coordinator, turns, spread
            ),
            topic=TopicHandler(storage, config, turns),
            configs=ConfigHandler(storage, config, address, turns, shown),
            acl=AclHandler(None if authorizer is None else authorizer.rules, turns),
            producer=ProducerHandler(producer_ids, transaction_coordinator),
            transaction=TransactionHandler(
                storage, transaction_coordinator, coordinator, group_offsets, clock, turns, spread
            ),
        )
        self._handlers |= self._more_routes(storage, coordinator, clock, shown or {})
        self._handlers |= self._client_routes(quotas, users)

    def _client_routes(self, quotas: QuotaStore, users: UserStore) -> dict[type[Message], Handler]:
        """Those of what administrators set about clients."""
        self._users = users
        self._judge_again_when(quotas.listen)
        may_alter = self._authorizer is not None
        user = UserHandler(users, self.turns, self.close_user, may_alter=may_alter)
        return client_routes(QuotaHandler(quotas, self.turns), user)

    def _more_routes(
        self,
        storage: KafkaStorage,
        coordinator: GroupCoordinator,
        clock: Clock,
        shown: Mapping[str, str],
    ) -> dict[type[Message], Handler]:
        """Those of consumer groups and of administrators' tools."""
        turns = self.turns
        return consumer_routes(
            ConsumerGroupHandler(storage, coordinator, turns), self._metadata, self._sees
        ) | tool_routes(
            ToolHandler(storage, self._config, turns, shown.get(LOG_DIRS, "")),
            TransactionLookup(self._transactions, clock, turns),
        )

    async def start(self) -> None:
        """Opens the listener; with port 0 the address then has the port that was found."""
        config = self._config
        try:
            port = await self._listener.start()
        except OSError as error:
            raise CannotListen("kafka", config.host, config.port, error) from error
        self._sweep()
        self.address.port = config.advertised_port or port

    def _new_connection(self) -> KafkaConnection:
        return KafkaConnection(
            self,
            self._config,
            budget=self.budget,
            buffers=self._buffers,
            pressure=self.pressure,
            limits=self.limits,
            statistics=self.statistics,
        )

    async def stop(self) -> None:
        """Takes no new connection, lets begun requests finish, then closes the rest."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self.pressure.close()
        await self._listener.close()
        for connection in self._connections:
            connection.stop()
            self._throttle.release(connection)
        serving = {each.task for each in self._connections if each.task is not None}
        serving |= self._left_behind
        if serving:
            _, late = await asyncio.wait(serving, timeout=_STOP_TIMEOUT_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        for connection in list(self._connections):
            connection.close()
        self._frames.close()

    def connected(self, client: KafkaConnection) -> None:
        self._connections.add(client)
        self._enter_share(client, "")
        names = self._certificate_names
        self._identify(client, ANONYMOUS if names is None else names.principal(client.certificate))
        self.statistics.accepted_count += 1
        if self._authenticator is not None:
            client.sasl = SaslSession(self._authenticator, client.peer)
            client.limit_frames(self._config.handshake_frame_bytes_max)

    def _identify(self, client: KafkaConnection, principal: str) -> None:
        client.principal = principal
        client.produce_route = client.fetch_route = None
        if self._authorizer is not None:
            client.access = self._authorizer.access(principal, client.peer)

    def _admitted(self, client: KafkaConnection, user: str) -> None:
        self._enter_share(client, user)
        self._identify(client, user_principal(user))

    def _sees(self, client: Client) -> Callable[[str], bool]:
        """Which topics a client may know of."""
        if self._authorizer is None:
            return sees_all
        access = client.access if isinstance(client, KafkaConnection) else None
        if access is None:
            access = self._authorizer.access(client.principal, client.peer)
        need = DESCRIBE_TOPIC
        return lambda name: access.allows(need.operation, need.kind, name)

    def _judge_again_when(self, listen: Callable[[Callable[[], None]], None]) -> None:
        """After each change of what is listened to, requests like those before are judged again."""
        loop = asyncio.get_running_loop()

        def forget() -> None:
            for client in self._connections:
                client.produce_route = client.fetch_route = None

        def changed() -> None:
            with suppress(RuntimeError):  # The loop is closed: there are no clients.
                loop.call_soon_threadsafe(forget)

        listen(changed)

    def _new_guard(self, authorizer: Authorizer, storage: KafkaStorage) -> Guard:
        self._judge_again_when(authorizer.rules.listen)
        return Guard(storage, self._config, self.turns, self.audit)

    def _enter_share(self, client: KafkaConnection, user: str) -> None:
        """Counts the requests of a connection with those of the same address and user."""
        self._leave_share(client)
        owner = (client.peer, user)
        share = self._shares.get(owner)
        if share is None:
            share = ByteShare(self.budget, self._config.client_bytes_in_flight_max)
            self._shares[owner] = share
        share.connection_count += 1
        self._owners[client] = owner
        client.move_to(share)

    def _leave_share(self, client: KafkaConnection) -> None:
        owner = self._owners.pop(client, None)
        if owner is not None:
            share = self._shares[owner]
            share.connection_count -= 1
            if not share.connection_count:
                del self._shares[owner]

    def disconnected(self, client: KafkaConnection) -> None:
        if client not in self._connections:
            return
        self._connections.discard(client)
        self._leave_share(client)
        self._transactions.disconnected(client)
        self._throttle.release(client)
        if client.task is not None and not client.task.done():
            self._left_behind.add(client.task)
            client.task.add_done_callback(self._left_behind.discard)

    def close_user(self, user: str) -> int:
        """Closes the connections of a user that has lost access; how many there were."""
        theirs = [
            each
            for each in self._connections
            if each.sasl is not None and each.sasl.is_done and each.sasl.user == user
        ]
        for client in theirs:
            _log.info("connection_closed", peer=client.peer, reason="the user was removed")
            client.abort()
        return len(theirs)

    def _sweep(self) -> None:
        """Closes connections that have passed a time-out, now and from time to time."""
        self.close_overdue()
        self._buffers.release_idle()
        shortest_s = min(self._config.handshake_timeout_s, self._config.idle_timeout_s)
        self._sweep_timer = asyncio.get_running_loop().call_later(
            min(shortest_s / _SWEEPS_PER_TIMEOUT, _SWEEP_S_MAX), self._sweep
        )

    def close_overdue(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for client in list(self._connections):
            client.shrink()
            timeout = client.overdue(now_s)
            if timeout is not None:
                self.limits.hit(f"{timeout}_timeout", client.peer)
                client.abort()

    @property
    def is_serving(self) -> bool:
        """Whether new connections are taken."""
        return self._listener.is_serving

    @property
    def fetched_record_count(self) -> int:
        """Records sent to Kafka clients so far."""
        return self._fetch.record_count

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def judge(
        self, length: int, first: memoryview, client: KafkaConnection
    ) -> tuple[bool, list[Part] | None]:
        return self._long_requests.judge_length(length, first, client.peer)

    async def begin(
        self, frame: bytearray, client: KafkaConnection
    ) -> Awaitable[list[Part] | None] | list[Part] | None:
        if self._throttle.is_muted(client):
            await self._throttle.wait_unmuted(client)
        started_s = perf_counter()
        if client.sasl is not None and not client.sasl.is_done:
            return await self._gate.begin(frame, client, client.sasl)
        try:
            header, request, is_long = await self._frames.decode(frame)
        except UnsupportedVersion as error:
            if error.api_key != ApiKey.API_VERSIONS:
                raise
            return refuse_api_versions(error.correlation_id)
        except RequestTooLong as error:
            await client.wait_answered()
            return self._long_requests.answer(frame, error, client.peer)
        guard, quotas = self._guard, self._throttle.quotas_of(client.principal, header)
        if isinstance(request, produce_fetch.ProduceRequest):
            return await self._begin_produce(frame, header, request, client, quotas, is_long)
        await client.wait_answered()
        if isinstance(request, produce_fetch.FetchRequest):
            is_judged = guard is None or guard.may_repeat_fetch(request, client)
            if is_judged and quotas is None:
                self._quick_fetch.learn(frame, header, request, client)
            else:
                client.fetch_route = None
        try:
            node = None if self._forwarding is None else await self._forwarding.target(request)
        except FirnError as error:
            return refuse_unreachable(frame, request, error)
        if node is not None:
            return await self._forward(node, frame, header, request, client)
        handler = self._handlers[type(request)]
        if isinstance(request, _WAITING) or getattr(request, "validate_only", False):
            if client.is_ending:
                return None
            client.may_give_up()
        if guard is None:
            work = handler(request, header, client)
        else:
            work = guard.handle(request, header, client, lambda left: handler(left, header, client))
        if quotas is None:
            response = await work
        else:
            response = await self._throttle.answer(quotas, header, request, work, client)
        if header.api_key in AUDITED:
            self._note_changes(header, request, response, client)
        return await self._answer(header, response, started_s, is_long)

    async def _begin_produce(
        self,
        frame: bytearray,
        header: RequestHeader,
        request: produce_fetch.ProduceRequest,
        client: KafkaConnection,
        quotas: ClientQuotas | None,
        is_long: bool,
    ) -> Coroutine[Any, Any, list[Part] | None]:
        """Requests like it take the fast path from now on, unless each has to be counted."""
        started_s = perf_counter()
        guard = self._guard
        client.produce_route = None
        if quotas is None and (guard is None or guard.may_repeat_produce(request, client)):
            self._fast_produce.learn(frame, header, request, client)
        if guard is None:
            beginning = self._produce.begin(header, request)
        else:
            beginning = guard.produce(header, request, client, self._produce.begin)
        if quotas is None:
            wait_s, answer = 0.0, await beginning
        else:
            timed = Timed(perf_counter)
            answer = await timed.run(beginning)
            wait_s = self._throttle.produced(quotas, len(frame), timed.spent_s, client)
        return self._finish_produce(header, request.acks, answer, started_s, is_long, wait_s)

    def _note_changes(
        self, header: RequestHeader, request: Message, response: Message, client: KafkaConnection
    ) -> None:
        names = names_of_changes(header.api_key, request, response)
        if names:
            what = ApiKey(header.api_key).name.lower()
            self.audit.changed(client.principal, client.peer, what, names)

    async def _forward(
        self,
        node: int,
        frame: bytearray,
        header: RequestHeader,
        request: Message,
        client: KafkaConnection,
    ) -> list[Part] | None:
        """The answer of another coordinator. What the client may do is judged here."""
        forwarding = self._forwarding
        assert forwarding is not None
        client.may_give_up()
        asker = ForwardedClient(client.peer, owner_of(client), client.principal)
        if self._guard is None:
            return await forwarding.forward(node, frame, request, asker)

        async def ask(left: Message) -> Message:
            asked = frame if left is request else None
            return await forwarding.ask(node, asked, header, left, asker)

        started_s = perf_counter()
        response = await self._guard.handle(request, header, client, ask)
        return await self._answer(header, response, started_s, is_long=False)

    async def serve_forwarded(self, frame: bytearray, client: ForwardedClient) -> list[Part]:
        """Answers a request that a client has sent to another node."""
        started_s = perf_counter()
        header, request, is_long = await self._frames.decode(frame)
        response = await self._handlers[type(request)](request, header, client)
        return await self._answer(header, response, started_s, is_long)

    async def _finish_produce(
        self,
        header: RequestHeader,
        acks: int,
        answer: Coroutine[Any, Any, produce_fetch.ProduceResponse],
        started_s: float,
        is_long: bool,
        wait_s: float,
    ) -> list[Part] | None:
        parts = await self._answer(header, told(await answer, wait_s), started_s, is_long)
        # With acks=0 the client expects no response at all, not even for an error.
        return None if acks == 0 else parts

    async def _answer(
        self, header: RequestHeader, response: Message, started_s: float, is_long: bool
    ) -> list[Part]:
        parts, error_code = await self._frames.encode(header, response, is_long=is_long)
        self.statistics.apis[header.api_key].add(perf_counter() - started_s, error_code)
        return parts
