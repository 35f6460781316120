"""Which handler answers which request, and what of the client it is told."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from firnmq.brokers.kafka.connections.connection import KafkaConnection
from firnmq.brokers.kafka.forwarding import ForwardedClient
from firnmq.brokers.kafka.handlers.acls import AclHandler
from firnmq.brokers.kafka.handlers.configs import ConfigHandler
from firnmq.brokers.kafka.handlers.consumer_groups import ConsumerGroupHandler
from firnmq.brokers.kafka.handlers.fetch import FetchHandler, request_bytes
from firnmq.brokers.kafka.handlers.groups import GroupHandler
from firnmq.brokers.kafka.handlers.lookup import LookupHandler
from firnmq.brokers.kafka.handlers.metadata import MetadataHandler
from firnmq.brokers.kafka.handlers.offsets import OffsetHandler
from firnmq.brokers.kafka.handlers.producers import ProducerHandler
from firnmq.brokers.kafka.handlers.quotas import QuotaHandler
from firnmq.brokers.kafka.handlers.tools import ToolHandler
from firnmq.brokers.kafka.handlers.topics import TopicHandler
from firnmq.brokers.kafka.handlers.transaction_lookup import TransactionLookup
from firnmq.brokers.kafka.handlers.transactions import TransactionHandler
from firnmq.brokers.kafka.handlers.users import UserHandler
from firnmq.brokers.kafka.protocol import (
    ErrorCode,
    Message,
    RequestHeader,
    api_versions_response,
)
from firnmq.brokers.kafka.protocol.messages import (
    acls,
    admin,
    clients,
    consumer_groups,
    groups,
    metadata,
    offsets,
    produce_fetch,
    security,
    tools,
    topic_partitions,
    transactions,
)
from firnmq.brokers.net.address import client_network

Client = KafkaConnection | ForwardedClient
Handler = Callable[[Any, RequestHeader, Any], Coroutine[Any, Any, Message]]
"""The last argument is the client: where others than coordinators answer, a connection."""


def routes(
    *,
    fetch: FetchHandler,
    lookup: LookupHandler,
    metadata_handler: MetadataHandler,
    group: GroupHandler,
    offset: OffsetHandler,
    topic: TopicHandler,
    configs: ConfigHandler,
    acl: AclHandler,
    producer: ProducerHandler,
    transaction: TransactionHandler,
) -> dict[type[Message], Handler]:
    """Request class → handler. Some need the version or the client's name as well."""

    async def api_versions(request: Any, header: Any, client: Any) -> Message:
        return api_versions_response()

    async def join(request: Any, header: RequestHeader, client: Client) -> Message:
        client_id, owner = header.client_id or "", owner_of(client)
        return await group.join(request, header.api_version, client_id, client.peer, owner)

    async def init_producer_id(request: Any, header: RequestHeader, client: Client) -> Message:
        connection = None
        if isinstance(client, KafkaConnection) and not client.is_ending:
            connection = client
        return await producer.init_producer_id(
            request, header.api_version, owner_of(client), connection
        )

    async def fetch_records(request: Any, header: Any, client: KafkaConnection) -> Message:
        with client.held.work(request_bytes(request)):
            return await fetch.handle(request, takes_ranges=client.takes_ranges, turns=client)

    return {
        metadata.ApiVersionsRequest: api_versions,
        security.SaslHandshakeRequest: _handshake,
        security.SaslAuthenticateRequest: _authenticate,
        metadata.MetadataRequest: _versioned(metadata_handler.metadata),
        metadata.DescribeClusterRequest: _plain(metadata_handler.describe_cluster),
        metadata.FindCoordinatorRequest: _versioned(metadata_handler.find_coordinator),
        produce_fetch.FetchRequest: fetch_records,
        produce_fetch.ListOffsetsRequest: _versioned(lookup.list_offsets),
        produce_fetch.OffsetForLeaderEpochRequest: _plain(lookup.offset_for_leader_epoch),
        groups.JoinGroupRequest: join,
        groups.SyncGroupRequest: _plain(group.sync),
        groups.HeartbeatRequest: _plain(group.heartbeat),
        groups.LeaveGroupRequest: _versioned(group.leave),
        groups.DescribeGroupsRequest: _versioned(group.describe),
        groups.ListGroupsRequest: _plain(group.list),
        groups.DeleteGroupsRequest: _plain(group.delete),
        offsets.OffsetCommitRequest: _versioned_and_owned(offset.commit),
        offsets.OffsetFetchRequest: _versioned(offset.fetch),
        offsets.OffsetDeleteRequest: _plain(offset.delete),
        admin.CreateTopicsRequest: _versioned(topic.create),
        admin.DeleteTopicsRequest: _versioned(topic.delete),
        admin.CreatePartitionsRequest: _plain(topic.create_partitions),
        admin.DeleteRecordsRequest: _plain(topic.delete_records),
        admin.DescribeConfigsRequest: _plain(configs.describe),
        admin.AlterConfigsRequest: _plain(configs.alter),
        admin.IncrementalAlterConfigsRequest: _plain(configs.alter_some),
        acls.DescribeAclsRequest: _plain(acl.describe),
        acls.CreateAclsRequest: _plain(acl.create),
        acls.DeleteAclsRequest: _plain(acl.delete),
        transactions.InitProducerIdRequest: init_producer_id,
        transactions.AddPartitionsToTxnRequest: _versioned(transaction.add_partitions),
        transactions.AddOffsetsToTxnRequest: _versioned(transaction.add_offsets),
        transactions.TxnOffsetCommitRequest: _versioned_and_owned(transaction.commit_offsets),
        transactions.EndTxnRequest: _versioned(transaction.end),
    }


def consumer_routes(
    handler: ConsumerGroupHandler,
    metadata_handler: MetadataHandler,
    sees: Callable[[Client], Callable[[str], bool]],
) -> dict[type[Message], Handler]:
    """The same for consumer groups that the coordinator assigns, and for lists of topics."""

    async def describe_topics(request: Any, header: Any, client: Client) -> Message:
        return await metadata_handler.topic_partitions(request, sees(client))

    async def heartbeat(request: Any, header: RequestHeader, client: Client) -> Message:
        return await handler.heartbeat(
            request,
            header.api_version,
            client_id=header.client_id or "",
            client_host=client.peer,
            owner=owner_of(client),
            sees=sees(client),
        )

    return {
        topic_partitions.DescribeTopicPartitionsRequest: describe_topics,
        topic_partitions.DescribeQuorumRequest: _plain(metadata_handler.quorum),
        consumer_groups.ConsumerGroupHeartbeatRequest: heartbeat,
        consumer_groups.ConsumerGroupDescribeRequest: _plain(handler.describe),
    }


def client_routes(quota: QuotaHandler, user: UserHandler) -> dict[type[Message], Handler]:
    """The same for what administrators set about clients."""
    return {
        clients.DescribeClientQuotasRequest: _plain(quota.describe),
        clients.AlterClientQuotasRequest: _plain(quota.alter),
        clients.DescribeUserScramCredentialsRequest: _plain(user.describe),
        clients.AlterUserScramCredentialsRequest: _plain(user.alter),
    }


def tool_routes(tool: ToolHandler, transaction: TransactionLookup) -> dict[type[Message], Handler]:
    """The same for what administrators' tools ask."""
    return {
        tools.DescribeLogDirsRequest: _plain(tool.describe_log_dirs),
        tools.DescribeProducersRequest: _plain(tool.describe_producers),
        tools.ListConfigResourcesRequest: _versioned(tool.list_config_resources),
        tools.ElectLeadersRequest: _plain(tool.elect_leaders),
        tools.AlterPartitionReassignmentsRequest: _plain(tool.reassign),
        tools.ListPartitionReassignmentsRequest: _plain(tool.list_reassignments),
        tools.ListTransactionsRequest: _plain(transaction.list),
        tools.DescribeTransactionsRequest: _plain(transaction.describe),
    }


async def _handshake(request: Any, header: Any, client: KafkaConnection) -> Message:
    client.close_when_answered()
    return security.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])


async def _authenticate(request: Any, header: Any, client: KafkaConnection) -> Message:
    client.close_when_answered()
    return security.SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="there is nothing to authenticate on this connection",
        auth_bytes=b"",
    )


def owner_of(client: KafkaConnection | ForwardedClient) -> str:
    """Whom limits per client are about: the authenticated user, or the address."""
    if isinstance(client, ForwardedClient):
        return client.owner
    return f"user {client.sasl.user}" if client.sasl is not None else client_network(client.peer)


def _plain(handle: Callable[[Any], Coroutine[Any, Any, Message]]) -> Handler:
    async def call(request: Any, header: Any, client: Any) -> Message:
        return await handle(request)

    return call


def _versioned_and_owned(
    handle: Callable[[Any, int, str], Coroutine[Any, Any, Message]],
) -> Handler:
    async def call(request: Any, header: RequestHeader, client: KafkaConnection) -> Message:
        return await handle(request, header.api_version, owner_of(client))

    return call


def _versioned(handle: Callable[[Any, int], Coroutine[Any, Any, Message]]) -> Handler:
    async def call(request: Any, header: RequestHeader, client: Any) -> Message:
        return await handle(request, header.api_version)

    return call
