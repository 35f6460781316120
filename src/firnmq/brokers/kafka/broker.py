"""The Kafka broker: from frames to handlers, and the listener that takes connections."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from time import perf_counter
from typing import Any

from firnmq.brokers.kafka.address import Address
from firnmq.brokers.kafka.budget import STEP_BYTES_MAX, ByteBudget
from firnmq.brokers.kafka.buffers import FrameBuffers
from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.connection import KafkaConnection
from firnmq.brokers.kafka.groups import GroupCoordinator
from firnmq.brokers.kafka.handlers.configs import ConfigHandler
from firnmq.brokers.kafka.handlers.fetch import FetchHandler
from firnmq.brokers.kafka.handlers.fetch_quick import QuickFetch
from firnmq.brokers.kafka.handlers.groups import GroupHandler
from firnmq.brokers.kafka.handlers.lookup import LookupHandler
from firnmq.brokers.kafka.handlers.metadata import MetadataHandler
from firnmq.brokers.kafka.handlers.offsets import OffsetHandler
from firnmq.brokers.kafka.handlers.produce import ProduceHandler
from firnmq.brokers.kafka.handlers.produce_quick import QuickProduce
from firnmq.brokers.kafka.handlers.producers import ProducerHandler
from firnmq.brokers.kafka.handlers.topics import TopicHandler
from firnmq.brokers.kafka.handlers.transactions import TransactionHandler
from firnmq.brokers.kafka.offsets import GroupOffsets
from firnmq.brokers.kafka.producer_ids import ProducerIds
from firnmq.brokers.kafka.protocol import (
    ApiKey,
    ErrorCode,
    Message,
    Part,
    RequestHeader,
    UnsupportedVersion,
    api_versions_response,
    decode_request,
    encode_response,
    refuse_api_versions,
)
from firnmq.brokers.kafka.protocol.messages import (
    admin,
    groups,
    metadata,
    offsets,
    produce_fetch,
    security,
    transactions,
)
from firnmq.brokers.kafka.security import Authenticator, SaslSession
from firnmq.brokers.kafka.security.gate import SaslGate
from firnmq.brokers.kafka.statistics import BrokerStatistics, error_of
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.kafka.transactions import TransactionCoordinator
from firnmq.clock import Clock
from firnmq.eventlog import EventLogger

_log = EventLogger("kafka")

_SWEEPS_PER_TIMEOUT = 4
_SWEEP_S_MAX = 5.0
_STOP_TIMEOUT_S = 5.0

_WAITING = (produce_fetch.FetchRequest, groups.JoinGroupRequest, groups.SyncGroupRequest)
"""Requests that may wait long for something that only this client wants to know."""

Handler = Callable[[Any, RequestHeader, KafkaConnection], Coroutine[Any, Any, Message]]


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
        authenticator: Authenticator | None = None,
        tls: ssl.SSLContext | None = None,
        shown: Mapping[str, str] | None = None,
    ) -> None:
        """`shown`: what clients that describe the broker are told beside its settings."""
        self._config = config
        self._connections: set[KafkaConnection] = set()
        self._left_behind: set[asyncio.Task[None]] = set()
        """Those that carry out requests of clients that are gone."""
        self._per_address: dict[str, int] = {}
        self._server: asyncio.Server | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._tls = tls
        self._authenticator = authenticator
        self.statistics = BrokerStatistics()
        self.budget = ByteBudget(config.total_bytes_in_flight_max)
        self._buffers = FrameBuffers(STEP_BYTES_MAX)
        self._gate = SaslGate(config, self.statistics)
        self.address = Address(config.advertised_host or config.host, config.port)
        self._produce = ProduceHandler(storage, transaction_coordinator)
        self._quick_produce = QuickProduce(storage, self.statistics.apis[ApiKey.PRODUCE])
        # A client that has not authenticated never has a route, so it begins nothing this way.
        self.begin_now = self._quick_produce.begin
        self.hand_over = self._quick_produce.hand_over
        fetch = FetchHandler(storage)
        self._quick_fetch = QuickFetch(storage, fetch, self.statistics.apis[ApiKey.FETCH])
        self.begin_wait = self._quick_fetch.begin
        self._handlers = _routes(
            fetch=fetch,
            lookup=LookupHandler(storage),
            metadata_handler=MetadataHandler(storage, config, self.address),
            group=GroupHandler(coordinator, group_offsets),
            offset=OffsetHandler(
                storage, group_offsets, coordinator, clock, transaction_coordinator
            ),
            topic=TopicHandler(storage, config),
            configs=ConfigHandler(storage, config, shown),
            producer=ProducerHandler(producer_ids, transaction_coordinator),
            transaction=TransactionHandler(storage, transaction_coordinator, coordinator, clock),
        )

    async def start(self) -> None:
        """Opens the listener; with port 0 the address then has the port that was found."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: KafkaConnection(
                self,
                self._config,
                budget=self.budget,
                buffers=self._buffers,
                statistics=self.statistics,
            ),
            self._config.host,
            self._config.port,
            backlog=1024,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else self._config.handshake_timeout_s,
        )
        self._sweep()
        port = self._server.sockets[0].getsockname()[1]
        self.address.port = self._config.advertised_port or port

    async def stop(self) -> None:
        """Takes no new connection, lets begun requests finish, then closes the rest."""
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.stop()
        serving = {each.task for each in self._connections if each.task is not None}
        serving |= self._left_behind
        if serving:
            _, late = await asyncio.wait(serving, timeout=_STOP_TIMEOUT_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        for connection in list(self._connections):
            connection.close("the node is stopping")
        if self._server is not None:
            await self._server.wait_closed()

    def connected(self, client: KafkaConnection) -> bool:
        from_there = self._per_address.get(client.peer, 0)
        for limit, count, allowed in (
            ("connections", len(self._connections), self._config.connections_max),
            ("connections_per_address", from_there, self._config.connections_per_address_max),
        ):
            if count >= allowed:
                _log.warning("connection_refused", peer=client.peer, limit=limit, allowed=allowed)
                self.statistics.limit_hit(limit)
                return False
        self._connections.add(client)
        self._per_address[client.peer] = from_there + 1
        self.statistics.accepted_count += 1
        if self._authenticator is not None:
            client.sasl = SaslSession(self._authenticator)
            client.frame_bytes_max = self._config.handshake_frame_bytes_max
        return True

    def disconnected(self, client: KafkaConnection) -> None:
        if client not in self._connections:
            return
        self._connections.discard(client)
        if client.task is not None and not client.task.done():
            self._left_behind.add(client.task)
            client.task.add_done_callback(self._left_behind.discard)
        left = self._per_address.pop(client.peer) - 1
        if left:
            self._per_address[client.peer] = left

    def _sweep(self) -> None:
        """Closes connections that have passed a time-out, now and from time to time."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for client in list(self._connections):
            timeout = client.overdue(now_s)
            if timeout is not None:
                self.statistics.limit_hit(f"{timeout}_timeout")
                client.abort(f"{timeout} time-out")
        shortest_s = min(self._config.handshake_timeout_s, self._config.idle_timeout_s)
        self._sweep_timer = loop.call_later(
            min(shortest_s / _SWEEPS_PER_TIMEOUT, _SWEEP_S_MAX), self._sweep
        )

    @property
    def is_serving(self) -> bool:
        """Whether new connections are taken."""
        return self._server is not None and self._server.is_serving()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def begin(
        self, frame: bytearray, client: KafkaConnection
    ) -> Awaitable[list[Part] | None] | list[Part] | None:
        started_s = perf_counter()
        if client.sasl is not None and not client.sasl.is_done:
            return await self._gate.begin(frame, client, client.sasl)
        try:
            header, request = decode_request(frame)
        except UnsupportedVersion as error:
            if error.api_key != ApiKey.API_VERSIONS:
                raise
            return refuse_api_versions(error.correlation_id)
        if isinstance(request, produce_fetch.ProduceRequest):
            self._quick_produce.learn(frame, header, request, client)
            answer = await self._produce.begin(header, request)
            return self._finish_produce(header, request.acks, answer, started_s)
        await client.wait_answered()
        if isinstance(request, produce_fetch.FetchRequest):
            self._quick_fetch.learn(frame, header, request, client)
        handler = self._handlers[type(request)]
        if isinstance(request, _WAITING):
            if client.is_ending:
                return None
            client.may_give_up = True
        response = await handler(request, header, client)
        took_s = perf_counter() - started_s
        self.statistics.apis[header.api_key].add(took_s, error_of(response))
        return encode_response(header, response)

    async def _finish_produce(
        self,
        header: RequestHeader,
        acks: int,
        answer: Coroutine[Any, Any, produce_fetch.ProduceResponse],
        started_s: float,
    ) -> list[Part] | None:
        response = await answer
        took_s = perf_counter() - started_s
        self.statistics.apis[header.api_key].add(took_s, error_of(response))
        if acks == 0:
            return None  # The client expects no response at all, not even for an error.
        return encode_response(header, response)


def _routes(
    *,
    fetch: FetchHandler,
    lookup: LookupHandler,
    metadata_handler: MetadataHandler,
    group: GroupHandler,
    offset: OffsetHandler,
    topic: TopicHandler,
    configs: ConfigHandler,
    producer: ProducerHandler,
    transaction: TransactionHandler,
) -> dict[type[Message], Handler]:
    """Request class → handler. Some need the version or the client's name as well."""

    async def api_versions(request: Any, header: Any, client: Any) -> Message:
        return api_versions_response()

    async def handshake(request: Any, header: Any, client: KafkaConnection) -> Message:
        client.close_when_answered()
        return security.SaslHandshakeResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[]
        )

    async def authenticate(request: Any, header: Any, client: KafkaConnection) -> Message:
        client.close_when_answered()
        return security.SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="there is nothing to authenticate on this connection",
            auth_bytes=b"",
        )

    async def join(request: Any, header: RequestHeader, client: KafkaConnection) -> Message:
        return await group.join(request, header.api_version, header.client_id or "", client.peer)

    async def fetch_records(request: Any, header: Any, client: KafkaConnection) -> Message:
        return await fetch.handle(request, takes_ranges=client.takes_ranges)

    return {
        metadata.ApiVersionsRequest: api_versions,
        security.SaslHandshakeRequest: handshake,
        security.SaslAuthenticateRequest: authenticate,
        metadata.MetadataRequest: _versioned(metadata_handler.metadata),
        metadata.DescribeClusterRequest: _plain(metadata_handler.describe_cluster),
        metadata.FindCoordinatorRequest: _versioned(metadata_handler.find_coordinator),
        produce_fetch.FetchRequest: fetch_records,
        produce_fetch.ListOffsetsRequest: _plain(lookup.list_offsets),
        produce_fetch.OffsetForLeaderEpochRequest: _plain(lookup.offset_for_leader_epoch),
        groups.JoinGroupRequest: join,
        groups.SyncGroupRequest: _plain(group.sync),
        groups.HeartbeatRequest: _plain(group.heartbeat),
        groups.LeaveGroupRequest: _versioned(group.leave),
        groups.DescribeGroupsRequest: _plain(group.describe),
        groups.ListGroupsRequest: _plain(group.list),
        groups.DeleteGroupsRequest: _plain(group.delete),
        offsets.OffsetCommitRequest: _plain(offset.commit),
        offsets.OffsetFetchRequest: _versioned(offset.fetch),
        offsets.OffsetDeleteRequest: _plain(offset.delete),
        admin.CreateTopicsRequest: _plain(topic.create),
        admin.DeleteTopicsRequest: _versioned(topic.delete),
        admin.CreatePartitionsRequest: _plain(topic.create_partitions),
        admin.DeleteRecordsRequest: _plain(topic.delete_records),
        admin.DescribeConfigsRequest: _plain(configs.describe),
        admin.AlterConfigsRequest: _plain(configs.alter),
        admin.IncrementalAlterConfigsRequest: _plain(configs.alter_some),
        transactions.InitProducerIdRequest: _versioned(producer.init_producer_id),
        transactions.AddPartitionsToTxnRequest: _versioned(transaction.add_partitions),
        transactions.AddOffsetsToTxnRequest: _versioned(transaction.add_offsets),
        transactions.TxnOffsetCommitRequest: _plain(transaction.commit_offsets),
        transactions.EndTxnRequest: _versioned(transaction.end),
    }


def _plain(handle: Callable[[Any], Coroutine[Any, Any, Message]]) -> Handler:
    async def call(request: Any, header: Any, client: Any) -> Message:
        return await handle(request)

    return call


def _versioned(handle: Callable[[Any, int], Coroutine[Any, Any, Message]]) -> Handler:
    async def call(request: Any, header: RequestHeader, client: Any) -> Message:
        return await handle(request, header.api_version)

    return call
