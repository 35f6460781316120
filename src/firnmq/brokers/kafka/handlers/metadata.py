"""ApiVersions, Metadata, DescribeCluster, FindCoordinator: who is where and speaks what."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from msgspec import structs

from firnmq.adapter import Topic
from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.failures import code_of, group_code_of
from firnmq.brokers.kafka.handlers.epochs import FIRST_EPOCH
from firnmq.brokers.kafka.nodes import NO_LEADER, KafkaNodes, Leader
from firnmq.brokers.kafka.operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from firnmq.brokers.kafka.protocol import ZERO_UUID, ErrorCode
from firnmq.brokers.kafka.protocol.messages.metadata import (
    OPERATIONS_NOT_REQUESTED,
    Coordinator,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from firnmq.brokers.kafka.protocol.messages.topic_partitions import (
    DescribedQuorumPartition,
    DescribedQuorumTopic,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    PageCursor,
    PagedPartition,
    PagedTopicPartitions,
    QuorumReplica,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.net.loop_turns import Turns
from firnmq.config import check_topic_name
from firnmq.errors import AlreadyExists, FirnError, InvalidArgument, TopicNotFound

_GROUP, _TRANSACTION = 0, 1
_METADATA_TOPIC = "__cluster_metadata"
_PAGE_PARTITIONS_MAX = 2_000
"""Partitions in one answer to DescribeTopicPartitions, as in Kafka."""
_CREATED_MAX = 100
"""Topics that one request creates by naming them. Each takes milliseconds and a commit, also for a
client that is gone. The others are not available yet, after which clients ask again."""


class MetadataHandler:
    def __init__(
        self, storage: KafkaStorage, config: KafkaConfig, nodes: KafkaNodes, turns: Turns
    ) -> None:
        self._turns = turns
        self._partitions: list[MetadataResponsePartition] = []
        """Partitions 0, 1, 2, ...: those of one topic are described like those of any other."""
        self._storage = storage
        self._config = config
        self._nodes = nodes

    async def metadata(self, request: MetadataRequest, version: int) -> MetadataResponse:
        wants_all = request.topics is None or (version == 0 and not request.topics)
        if wants_all:
            there = self._storage.catalog.topics()
            topics = [self._describe(topic) async for topic in self._turns.over(there)]
        else:
            assert request.topics is not None
            # Each topic is described once, however often it is named.
            may_create = request.allow_auto_topic_creation and self._config.auto_create_topics
            left = _CREATED_MAX if may_create else 0
            topics = []
            async for wanted in self._turns.distinct(request.topics):
                described, is_new = await self._wanted(wanted, may_create, left)
                topics.append(described)
                left -= is_new
        if request.include_topic_authorized_operations:
            topics = [
                structs.replace(each, topic_authorized_operations=TOPIC_OPERATIONS)  # type: ignore[type-var]
                async for each in self._turns.over(topics)
            ]
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=each.node_id, host=each.host, port=each.port)
                for each in self._nodes.members()
            ],
            cluster_id=self._nodes.cluster_id,
            controller_id=self._nodes.controller_id(),
            topics=topics,
            cluster_authorized_operations=_asked(
                request.include_cluster_authorized_operations, CLUSTER_OPERATIONS
            ),
        )

    async def describe_cluster(self, request: DescribeClusterRequest) -> DescribeClusterResponse:
        return DescribeClusterResponse(
            cluster_id=self._nodes.cluster_id,
            controller_id=self._nodes.controller_id(),
            brokers=[
                DescribeClusterBroker(broker_id=each.node_id, host=each.host, port=each.port)
                for each in self._nodes.brokers()
            ],
            endpoint_type=request.endpoint_type,
            cluster_authorized_operations=_asked(
                request.include_cluster_authorized_operations, CLUSTER_OPERATIONS
            ),
        )

    async def topic_partitions(
        self, request: DescribeTopicPartitionsRequest, sees: Callable[[str], bool]
    ) -> DescribeTopicPartitionsResponse:
        """One page of topics in the order of their names, from the cursor on."""
        names = {topic.name for topic in request.topics}
        if not names:
            there = self._storage.catalog.topics()
            names = {topic.name async for topic in self._turns.over(there) if sees(topic.name)}
        cursor = request.cursor
        first = "" if cursor is None else cursor.topic_name
        left = min(max(request.response_partition_limit, 1), _PAGE_PARTITIONS_MAX)
        found: list[PagedTopicPartitions] = []
        async for name in self._turns.over(sorted(names)):
            if name < first:
                continue
            begin = max(cursor.partition_index, 0) if cursor and name == first else 0
            if left <= 0:
                break
            described = await self._described(name)
            some = described.partitions[begin : begin + left]
            found.append(
                PagedTopicPartitions(
                    error_code=described.error_code,
                    name=name,
                    topic_id=described.topic_id,
                    partitions=[_paged(each) for each in some],
                    topic_authorized_operations=TOPIC_OPERATIONS,
                )
            )
            left -= max(len(some), 1)
            if begin + len(some) < len(described.partitions):
                following = PageCursor(topic_name=name, partition_index=begin + len(some))
                return DescribeTopicPartitionsResponse(topics=found, next_cursor=following)
        else:
            return DescribeTopicPartitionsResponse(topics=found)
        return DescribeTopicPartitionsResponse(
            topics=found, next_cursor=PageCursor(topic_name=name, partition_index=0)
        )

    async def _described(self, name: str) -> MetadataResponseTopic:
        return (await self._wanted(MetadataRequestTopic(name=name), False, 0))[0]

    async def quorum(self, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        """The metadata in the words of a Raft quorum: the controller leads, and is the only voter;
        other nodes follow. How far they are is the newest change of the metadata that is known."""
        known = [
            (topic.topic_name, part.partition_index)
            for topic in request.topics
            for part in topic.partitions
        ]
        if known != [(_METADATA_TOPIC, 0)]:
            return DescribeQuorumResponse(
                topics=[
                    DescribedQuorumTopic(
                        topic_name=topic.topic_name,
                        partitions=[
                            DescribedQuorumPartition(
                                partition_index=part.partition_index,
                                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                                leader_id=NO_LEADER,
                                leader_epoch=-1,
                                high_watermark=-1,
                                current_voters=[],
                                observers=[],
                            )
                            for part in topic.partitions
                        ],
                    )
                    async for topic in self._turns.over(request.topics)
                ]
            )
        leader = self._nodes.controller_id()
        revision = self._storage.catalog.cache_revision
        others = [each.node_id for each in self._nodes.brokers() if each.node_id != leader]
        partition = DescribedQuorumPartition(
            partition_index=0,
            leader_id=leader,
            leader_epoch=FIRST_EPOCH,
            high_watermark=revision,
            current_voters=[QuorumReplica(replica_id=leader, log_end_offset=revision)],
            observers=[QuorumReplica(replica_id=node, log_end_offset=revision) for node in others],
        )
        topic = DescribedQuorumTopic(topic_name=_METADATA_TOPIC, partitions=[partition])
        return DescribeQuorumResponse(topics=[topic])

    async def find_coordinator(
        self, request: FindCoordinatorRequest, version: int
    ) -> FindCoordinatorResponse:
        code = ErrorCode.NONE
        if request.key_type not in (_GROUP, _TRANSACTION):
            code = ErrorCode.INVALID_REQUEST
        if version >= 4:
            return FindCoordinatorResponse(
                coordinators=[
                    await self._coordinator(key, code)
                    async for key in self._turns.distinct(request.coordinator_keys)
                ]
            )
        found = await self._coordinator(request.key, code)
        return FindCoordinatorResponse(
            error_code=found.error_code, node_id=found.node_id, host=found.host, port=found.port
        )

    async def _coordinator(self, key: str, code: ErrorCode) -> Coordinator:
        found = None
        try:
            found = await self._nodes.coordinator(key)
        except FirnError as error:
            code = code or group_code_of(error)
        if found is None:
            code = code or ErrorCode.COORDINATOR_NOT_AVAILABLE
            return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code)
        return Coordinator(
            key=key, node_id=found.node_id, host=found.host, port=found.port, error_code=code
        )

    async def _wanted(
        self, wanted: MetadataRequestTopic, may_create: bool, left: int
    ) -> tuple[MetadataResponseTopic, bool]:
        """What a topic is, and whether it was created. `left`: how many topics the request may
        still create."""
        name = wanted.name
        if name is None or wanted.topic_id != ZERO_UUID:
            return self._by_id(wanted.topic_id), False
        topic = self._storage.find(name)
        if topic is not None:
            return self._describe(topic), False
        try:
            check_topic_name(name)
            if not may_create:
                raise TopicNotFound(name)
            if left > 0:
                return self._describe(await self._create(name)), True
            code = ErrorCode.LEADER_NOT_AVAILABLE
        except InvalidArgument:
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
        except FirnError as error:
            code = code_of(error)
        return MetadataResponseTopic(name=name, error_code=code, partitions=[]), False

    async def _create(self, name: str) -> Topic:
        try:
            return await self._storage.manager.create_topic(
                name, self._config.auto_create_shards, self._config.topic_defaults
            )
        except AlreadyExists:  # Another client asked at the same moment.
            return self._storage.topic(name)

    def _by_id(self, topic_id: UUID) -> MetadataResponseTopic:
        topic = self._storage.catalog.with_id(topic_id.hex)
        if topic is not None:
            return self._describe(topic)
        return MetadataResponseTopic(
            name=None, topic_id=topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID, partitions=[]
        )

    def _describe(self, topic: Topic) -> MetadataResponseTopic:
        count = topic.shard_count
        leaders = self._nodes.leaders(topic.shard_names())
        if leaders is not None:
            partitions = [_partition(index, leader) for index, leader in enumerate(leaders)]
        else:
            if count > len(self._partitions):
                self._describe_partitions(count)
            partitions = self._partitions[:count]
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=UUID(topic.topic_id) if topic.topic_id else ZERO_UUID,
            partitions=partitions,
        )

    def _describe_partitions(self, count: int) -> None:
        node = [self._config.node_id]
        self._partitions += [
            MetadataResponsePartition(
                partition_index=index,
                leader_id=self._config.node_id,
                leader_epoch=FIRST_EPOCH,
                replica_nodes=node,
                isr_nodes=node,
            )
            for index in range(len(self._partitions), count)
        ]


def _asked(is_asked: bool, operations: int) -> int:
    return operations if is_asked else OPERATIONS_NOT_REQUESTED


def _paged(partition: MetadataResponsePartition) -> PagedPartition:
    return PagedPartition(
        error_code=partition.error_code,
        partition_index=partition.partition_index,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replica_nodes,
        isr_nodes=partition.isr_nodes,
        offline_replicas=partition.offline_replicas,
    )


def _partition(index: int, leader: Leader) -> MetadataResponsePartition:
    is_away = leader.node_id == NO_LEADER
    return MetadataResponsePartition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if is_away else ErrorCode.NONE,
        partition_index=index,
        leader_id=leader.node_id,
        leader_epoch=leader.epoch,
        replica_nodes=list(leader.replicas),
        isr_nodes=list(leader.in_sync),
        offline_replicas=list(leader.offline),
    )
