"""ApiVersions, Metadata, DescribeCluster, FindCoordinator: who is where and speaks what."""

from __future__ import annotations

from uuid import UUID

from firnmq.adapter import Topic
from firnmq.brokers.kafka.address import Address
from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.handlers.lookup import LEADER_EPOCH
from firnmq.brokers.kafka.protocol import ZERO_UUID, ErrorCode
from firnmq.brokers.kafka.protocol.messages.metadata import (
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
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.config import check_topic_name
from firnmq.errors import AlreadyExists, FirnError, InvalidArgument, TopicNotFound

_GROUP, _TRANSACTION = 0, 1


class MetadataHandler:
    def __init__(self, storage: KafkaStorage, config: KafkaConfig, address: Address) -> None:
        self._storage = storage
        self._config = config
        self._address = address

    async def metadata(self, request: MetadataRequest, version: int) -> MetadataResponse:
        wants_all = request.topics is None or (version == 0 and not request.topics)
        if wants_all:
            topics = [self._describe(topic) for topic in self._storage.catalog.topics()]
        else:
            assert request.topics is not None
            topics = [await self._wanted(each, request) for each in request.topics]
        broker = MetadataResponseBroker(
            node_id=self._config.node_id, host=self._address.host, port=self._address.port
        )
        return MetadataResponse(
            brokers=[broker],
            cluster_id=self._config.cluster_id,
            controller_id=self._config.node_id,
            topics=topics,
        )

    async def describe_cluster(self, request: DescribeClusterRequest) -> DescribeClusterResponse:
        broker = DescribeClusterBroker(
            broker_id=self._config.node_id, host=self._address.host, port=self._address.port
        )
        return DescribeClusterResponse(
            cluster_id=self._config.cluster_id,
            controller_id=self._config.node_id,
            brokers=[broker],
            endpoint_type=request.endpoint_type,
        )

    async def find_coordinator(
        self, request: FindCoordinatorRequest, version: int
    ) -> FindCoordinatorResponse:
        code = ErrorCode.NONE
        if request.key_type not in (_GROUP, _TRANSACTION):
            code = ErrorCode.INVALID_REQUEST
        node_id, host, port = self._config.node_id, self._address.host, self._address.port
        if version >= 4:
            return FindCoordinatorResponse(
                coordinators=[
                    Coordinator(key=key, node_id=node_id, host=host, port=port, error_code=code)
                    for key in request.coordinator_keys
                ]
            )
        return FindCoordinatorResponse(error_code=code, node_id=node_id, host=host, port=port)

    async def _wanted(
        self, wanted: MetadataRequestTopic, request: MetadataRequest
    ) -> MetadataResponseTopic:
        if wanted.name is None:
            return self._by_id(wanted.topic_id)
        topic = self._storage.find(wanted.name)
        if topic is not None:
            return self._describe(topic)
        may_create = request.allow_auto_topic_creation and self._config.auto_create_topics
        try:
            check_topic_name(wanted.name)
            if not may_create:
                raise TopicNotFound(wanted.name)
            try:
                topic = await self._storage.manager.create_topic(
                    wanted.name, self._config.auto_create_shards, self._config.topic_defaults
                )
            except AlreadyExists:  # Another client asked at the same moment.
                topic = self._storage.topic(wanted.name)
            return self._describe(topic)
        except InvalidArgument:
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
        except FirnError as error:
            code = code_of(error)
        return MetadataResponseTopic(name=wanted.name, error_code=code, partitions=[])

    def _by_id(self, topic_id: UUID) -> MetadataResponseTopic:
        for topic in self._storage.catalog.topics():
            if topic.topic_id == topic_id.hex:
                return self._describe(topic)
        return MetadataResponseTopic(
            name=None, topic_id=topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID, partitions=[]
        )

    def _describe(self, topic: Topic) -> MetadataResponseTopic:
        node = [self._config.node_id]
        return MetadataResponseTopic(
            name=topic.name,
            topic_id=UUID(topic.topic_id) if topic.topic_id else ZERO_UUID,
            partitions=[
                MetadataResponsePartition(
                    partition_index=index,
                    leader_id=self._config.node_id,
                    leader_epoch=LEADER_EPOCH,
                    replica_nodes=node,
                    isr_nodes=node,
                )
                for index in range(topic.shard_count)
            ],
        )
