"""The Kafka broker: from frames to handlers, and the listener that takes connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from firnmq.brokers.kafka.address import Address
from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.connection import KafkaConnection
from firnmq.brokers.kafka.groups import GroupCoordinator
from firnmq.brokers.kafka.handlers.configs import ConfigHandler
from firnmq.brokers.kafka.handlers.fetch import FetchHandler
from firnmq.brokers.kafka.handlers.groups import GroupHandler
from firnmq.brokers.kafka.handlers.lookup import LookupHandler
from firnmq.brokers.kafka.handlers.metadata import MetadataHandler
from firnmq.brokers.kafka.handlers.offsets import OffsetHandler
from firnmq.brokers.kafka.handlers.produce import ProduceHandler
from firnmq.brokers.kafka.handlers.producers import ProducerHandler
from firnmq.brokers.kafka.handlers.topics import TopicHandler
from firnmq.brokers.kafka.offsets import GroupOffsets
from firnmq.brokers.kafka.producer_ids import ProducerIds
from firnmq.brokers.kafka.protocol import (
    ApiKey,
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
    transactions,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.clock import Clock
from firnmq.eventlog import EventLogger

_log = EventLogger("kafka")

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
        clock: Clock,
    ) -> None:
        self._config = config
        self._connections: set[KafkaConnection] = set()
        self._server: asyncio.Server | None = None
        self.address = Address(config.advertised_host or config.host, config.port)
        self._produce = ProduceHandler(storage)
        self._handlers = _routes(
            fetch=FetchHandler(storage),
            lookup=LookupHandler(storage),
            metadata_handler=MetadataHandler(storage, config, self.address),
            group=GroupHandler(coordinator, group_offsets),
            offset=OffsetHandler(storage, group_offsets, coordinator, clock),
            topic=TopicHandler(storage, config),
            configs=ConfigHandler(storage, config),
            producer=ProducerHandler(producer_ids),
        )

    async def start(self) -> None:
        """Opens the listener; with port 0 the address then has the port that was found."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: KafkaConnection(self, self._config),
            self._config.host,
            self._config.port,
            backlog=1024,
        )
        port = self._server.sockets[0].getsockname()[1]
        self.address.port = self._config.advertised_port or port

    async def stop(self) -> None:
        """Takes no new connection, lets begun requests finish, then closes the rest."""
        if self._server is not None:
            self._server.close()
        waits = [asyncio.ensure_future(each.wait_answered()) for each in self._connections]
        if waits:
            await asyncio.wait(waits, timeout=5)
        for connection in list(self._connections):
            connection.close("the node is stopping")
        if self._server is not None:
            await self._server.wait_closed()

    def connected(self, client: KafkaConnection) -> bool:
        if len(self._connections) >= self._config.connections_max:
            _log.warning("connection_refused", peer=client.peer, limit=len(self._connections))
            return False
        self._connections.add(client)
        return True

    def disconnected(self, client: KafkaConnection) -> None:
        self._connections.discard(client)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def begin(
        self, frame: bytearray, client: KafkaConnection
    ) -> Awaitable[list[Part] | None] | list[Part] | None:
        try:
            header, request = decode_request(frame)
        except UnsupportedVersion as error:
            if error.api_key != ApiKey.API_VERSIONS:
                raise
            return refuse_api_versions(error.correlation_id)
        if isinstance(request, produce_fetch.ProduceRequest):
            return await self._produce.begin(header, request)
        await client.wait_answered()
        handler = self._handlers[type(request)]
        return encode_response(header, await handler(request, header, client))


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
) -> dict[type[Message], Handler]:
    """Request class → handler. Some need the version or the client's name as well."""

    async def api_versions(request: Any, header: Any, client: Any) -> Message:
        return api_versions_response()

    async def join(request: Any, header: RequestHeader, client: KafkaConnection) -> Message:
        return await group.join(request, header.api_version, header.client_id or "", client.peer)

    return {
        metadata.ApiVersionsRequest: api_versions,
        metadata.MetadataRequest: _versioned(metadata_handler.metadata),
        metadata.DescribeClusterRequest: _plain(metadata_handler.describe_cluster),
        metadata.FindCoordinatorRequest: _versioned(metadata_handler.find_coordinator),
        produce_fetch.FetchRequest: _plain(fetch.handle),
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
        transactions.InitProducerIdRequest: _plain(producer.init_producer_id),
    }


def _plain(handle: Callable[[Any], Coroutine[Any, Any, Message]]) -> Handler:
    async def call(request: Any, header: Any, client: Any) -> Message:
        return await handle(request)

    return call


def _versioned(handle: Callable[[Any, int], Coroutine[Any, Any, Message]]) -> Handler:
    async def call(request: Any, header: RequestHeader, client: Any) -> Message:
        return await handle(request, header.api_version)

    return call
