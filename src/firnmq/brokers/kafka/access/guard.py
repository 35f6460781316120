"""The authorizer in front of the handlers: judges a request, hands on what is left of it, and joins
the answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from firnmq.brokers.kafka.access import (
    acls,
    clients,
    configs,
    consumer_groups,
    groups,
    tools,
    topics,
    transactions,
)
from firnmq.brokers.kafka.access.asked import Asked, Proceed, named
from firnmq.brokers.kafka.access.table import READ_TOPIC, TABLE, WRITE_TOPIC, Need
from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.protocol import ApiKey, Message, RequestHeader
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    FetchRequest,
    ProduceRequest,
    ProduceResponse,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.net.loop_turns import Turns
from firnmq.brokers.security.acl import Access
from firnmq.brokers.security.audit import AuditLog

Judge = Callable[[Asked, Any, Proceed], Coroutine[Any, Any, Message]]

JUDGES: Final[dict[ApiKey, Judge]] = {
    ApiKey.FETCH: topics.fetch,
    ApiKey.LIST_OFFSETS: topics.list_offsets,
    ApiKey.METADATA: topics.describe,
    ApiKey.OFFSET_COMMIT: groups.commit,
    ApiKey.OFFSET_FETCH: groups.fetch_offsets,
    ApiKey.FIND_COORDINATOR: groups.find_coordinator,
    ApiKey.JOIN_GROUP: groups.join,
    ApiKey.HEARTBEAT: groups.heartbeat,
    ApiKey.LEAVE_GROUP: groups.leave,
    ApiKey.SYNC_GROUP: groups.sync,
    ApiKey.DESCRIBE_GROUPS: groups.describe,
    ApiKey.LIST_GROUPS: groups.list_groups,
    ApiKey.CREATE_TOPICS: topics.create,
    ApiKey.DELETE_TOPICS: topics.delete,
    ApiKey.DELETE_RECORDS: topics.delete_records,
    ApiKey.INIT_PRODUCER_ID: transactions.init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: topics.offset_for_leader_epoch,
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.add_offsets,
    ApiKey.END_TXN: transactions.end,
    ApiKey.TXN_OFFSET_COMMIT: transactions.commit_offsets,
    ApiKey.DESCRIBE_ACLS: acls.describe,
    ApiKey.CREATE_ACLS: acls.create,
    ApiKey.DELETE_ACLS: acls.delete,
    ApiKey.DESCRIBE_CONFIGS: configs.describe,
    ApiKey.ALTER_CONFIGS: configs.alter,
    ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    ApiKey.DELETE_GROUPS: groups.delete,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.alter,
    ApiKey.OFFSET_DELETE: groups.delete_offsets,
    ApiKey.DESCRIBE_CLUSTER: topics.describe_cluster,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: clients.describe_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: clients.alter_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: clients.describe_users,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: clients.alter_users,
    ApiKey.DESCRIBE_LOG_DIRS: tools.log_dirs,
    ApiKey.ELECT_LEADERS: tools.elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: tools.reassign,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: tools.list_reassignments,
    ApiKey.DESCRIBE_PRODUCERS: tools.producers,
    ApiKey.DESCRIBE_TRANSACTIONS: tools.describe_transactions,
    ApiKey.LIST_TRANSACTIONS: tools.list_transactions,
    ApiKey.LIST_CONFIG_RESOURCES: tools.list_config_resources,
    ApiKey.DESCRIBE_QUORUM: tools.quorum,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: tools.topic_partitions,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_groups.heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_groups.describe,
}
"""Every API that needs something but Produce, which begins before it is answered."""


class Client(Protocol):
    """What a connection is for this module."""

    access: Access | None


class Guard:
    """Owned by the event loop."""

    def __init__(
        self, storage: KafkaStorage, config: KafkaConfig, turns: Turns, audit: AuditLog
    ) -> None:
        self._storage = storage
        self._config = config
        self._turns = turns
        self._audit = audit

    # What is known of topics --------------------------------------------------------------------

    def name_of(self, topic_id: str) -> str | None:
        topic = self._storage.catalog.with_id(topic_id)
        return None if topic is None else topic.name

    def is_created_when_named(self, name: str) -> bool:
        return self._config.auto_create_topics and self._storage.find(name) is None

    # Requests -----------------------------------------------------------------------------------

    async def handle(
        self,
        request: Message,
        header: RequestHeader,
        client: Client,
        proceed: Proceed,
    ) -> Message:
        api = ApiKey(header.api_key)
        if not TABLE[api]:
            return await proceed(request)
        asked = self._asked(api, header, client)
        try:
            return await JUDGES[api](asked, request, proceed)
        finally:
            asked.report(self._audit)

    async def produce(
        self,
        header: RequestHeader,
        request: ProduceRequest,
        client: Client,
        begin: Callable[
            [RequestHeader, ProduceRequest], Awaitable[Coroutine[Any, Any, ProduceResponse]]
        ],
    ) -> Coroutine[Any, Any, ProduceResponse]:
        """Begins what the client may; the coroutine waits for it, and adds the refusals."""
        asked = self._asked(ApiKey.PRODUCE, header, client)
        left, refused = await topics.judge_produce(asked, request)
        asked.report(self._audit)
        begun = await begin(header, left)
        if not refused:
            return begun

        async def answer() -> ProduceResponse:
            return topics.join_produce(await begun, refused)

        return answer()

    def may_repeat_produce(self, request: ProduceRequest, client: Client) -> bool:
        """Whether requests for the same one topic need no judgement until the rules change."""
        return len(request.topic_data) == 1 and self._allows(
            client, WRITE_TOPIC, request.topic_data[0]
        )

    def may_repeat_fetch(self, request: FetchRequest, client: Client) -> bool:
        """The same for a fetch."""
        return (
            len(request.topics) == 1
            and topics.replica_of(request) < 0
            and self._allows(client, READ_TOPIC, request.topics[0])
        )

    def _allows(self, client: Client, need: Need, topic: Any) -> bool:
        assert client.access is not None
        name = named(topic, self)
        return name is not None and client.access.allows(need.operation, need.kind, name)

    def _asked(self, api: ApiKey, header: RequestHeader, client: Client) -> Asked:
        assert client.access is not None
        return Asked(api, header.api_version, client.access, self, self._turns)
