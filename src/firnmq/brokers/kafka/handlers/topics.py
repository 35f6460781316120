"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords."""

from __future__ import annotations

from uuid import UUID

from firnmq.adapter import Topic
from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.handlers.configs import is_default, topic_config
from firnmq.brokers.kafka.protocol import ZERO_UUID, ErrorCode
from firnmq.brokers.kafka.protocol.messages.admin import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.config import TopicConfig, check_topic_name
from firnmq.errors import AlreadyExists, FirnError, InvalidArgument

_REPLICAS = (-1, 1)
"""Replication factors one node can honour; -1 leaves it to the broker."""
_TOPIC_CONFIG, _DEFAULT_CONFIG = 1, 5


class TopicHandler:
    def __init__(self, storage: KafkaStorage, config: KafkaConfig) -> None:
        self._storage = storage
        self._config = config

    async def create(self, request: CreateTopicsRequest) -> CreateTopicsResponse:
        names = [topic.name for topic in request.topics]
        results = []
        for topic in request.topics:
            if names.count(topic.name) > 1:
                results.append(
                    CreatableTopicResult(
                        name=topic.name,
                        error_code=ErrorCode.INVALID_REQUEST,
                        error_message="the request names this topic twice",
                    )
                )
                continue
            results.append(await self._create(topic, request.validate_only))
        return CreateTopicsResponse(topics=results)

    async def delete(self, request: DeleteTopicsRequest, version: int) -> DeleteTopicsResponse:
        if version >= 6:
            wanted = list(request.topics)
        else:
            wanted = [DeleteTopicState(name=name) for name in request.topic_names]
        return DeleteTopicsResponse(responses=[await self._delete(each) for each in wanted])

    async def create_partitions(self, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        results = [await self._grow(topic, request.validate_only) for topic in request.topics]
        return CreatePartitionsResponse(results=results)

    async def delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        topics = []
        for topic in request.topics:
            partitions = [await self._trim(topic.name, each) for each in topic.partitions]
            topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
        return DeleteRecordsResponse(topics=topics)

    async def _create(self, wanted: CreatableTopic, validate_only: bool) -> CreatableTopicResult:
        code, message = ErrorCode.NONE, ""
        config = self._config.topic_defaults
        count = self._config.auto_create_shards
        try:
            check_topic_name(wanted.name)
        except InvalidArgument as error:
            code, message = ErrorCode.INVALID_TOPIC_EXCEPTION, str(error)
        if not code and self._storage.find(wanted.name) is not None:
            code, message = ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {wanted.name!r} exists already"
        if not code:
            code, message, count = self._judge_layout(wanted)
        if not code:
            try:
                config = topic_config(
                    self._config.topic_defaults, {each.name: each.value for each in wanted.configs}
                )
                if config.storage_type not in self._storage.manager.storage_types():
                    raise InvalidArgument("storage.type", f"{config.storage_type!r} is not known")
                config.check_new()
            except InvalidArgument as error:
                code, message = ErrorCode.INVALID_CONFIG, str(error)
        if code:
            return CreatableTopicResult(name=wanted.name, error_code=code, error_message=message)
        topic: Topic | None = None
        if not validate_only:
            try:
                topic = await self._storage.manager.create_topic(wanted.name, count, config)
            except AlreadyExists as error:
                return _failed(wanted.name, ErrorCode.TOPIC_ALREADY_EXISTS, error)
            except FirnError as error:
                return _failed(wanted.name, code_of(error), error)
        return CreatableTopicResult(
            name=wanted.name,
            num_partitions=count,
            replication_factor=1,
            configs=self._shown(config),
            topic_id=ZERO_UUID if topic is None else UUID(topic.topic_id),
        )

    def _judge_layout(self, wanted: CreatableTopic) -> tuple[ErrorCode, str, int]:
        if wanted.assignments:
            indexes = sorted(each.partition_index for each in wanted.assignments)
            nodes = {node for each in wanted.assignments for node in each.broker_ids}
            if indexes != list(range(len(indexes))) or nodes != {self._config.node_id}:
                text = f"this cluster has one node, {self._config.node_id}"
                return ErrorCode.INVALID_REPLICA_ASSIGNMENT, text, 0
            return ErrorCode.NONE, "", len(indexes)
        if wanted.replication_factor not in _REPLICAS:
            text = f"replication factor {wanted.replication_factor} needs more nodes than one"
            return ErrorCode.INVALID_REPLICATION_FACTOR, text, 0
        if wanted.num_partitions == -1:
            return ErrorCode.NONE, "", self._config.auto_create_shards
        if wanted.num_partitions < 1:
            return ErrorCode.INVALID_PARTITIONS, "there must be at least one partition", 0
        return ErrorCode.NONE, "", wanted.num_partitions

    def _shown(self, config: TopicConfig) -> list[CreatableTopicConfigs]:
        return [
            CreatableTopicConfigs(
                name=name,
                value=value if value is not None else "-1",
                config_source=_DEFAULT_CONFIG if is_default(name, config) else _TOPIC_CONFIG,
            )
            for name, value in config.options().items()
        ]

    async def _delete(self, wanted: DeleteTopicState) -> DeletableTopicResult:
        name = wanted.name
        if name is None:
            for topic in self._storage.catalog.topics():
                if topic.topic_id == wanted.topic_id.hex:
                    name = topic.name
        if name is None:
            return DeletableTopicResult(
                name=None, topic_id=wanted.topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID
            )
        try:
            await self._storage.manager.delete_topic(name)
        except FirnError as error:
            return DeletableTopicResult(
                name=name,
                topic_id=wanted.topic_id,
                error_code=code_of(error),
                error_message=str(error),
            )
        return DeletableTopicResult(name=name, topic_id=wanted.topic_id)

    async def _grow(
        self, wanted: CreatePartitionsTopic, validate_only: bool
    ) -> CreatePartitionsTopicResult:
        try:
            topic = self._storage.topic(wanted.name)
            if wanted.count <= topic.shard_count:
                return CreatePartitionsTopicResult(
                    name=wanted.name,
                    error_code=ErrorCode.INVALID_PARTITIONS,
                    error_message=f"there are {topic.shard_count} already; partitions never go",
                )
            if not validate_only:
                await self._storage.manager.grow_topic(wanted.name, wanted.count)
        except FirnError as error:
            return CreatePartitionsTopicResult(
                name=wanted.name, error_code=code_of(error), error_message=str(error)
            )
        return CreatePartitionsTopicResult(name=wanted.name)

    async def _trim(
        self, name: str, wanted: DeleteRecordsPartition
    ) -> DeleteRecordsPartitionResult:
        index = wanted.partition_index
        try:
            self._storage.shard(name, index)
            if not self._storage.topic(name).config.cleanup_policy.deletes:
                return DeleteRecordsPartitionResult(
                    partition_index=index, low_watermark=-1, error_code=ErrorCode.POLICY_VIOLATION
                )
            offset = wanted.offset
            if offset == -1:  # Up to the high watermark.
                offset = (await self._storage.bounds(name, index))[1]
            low = await self._storage.delete_before(name, index, offset)
        except FirnError as error:
            return DeleteRecordsPartitionResult(
                partition_index=index, low_watermark=-1, error_code=code_of(error)
            )
        return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low)


def _failed(name: str, code: ErrorCode, error: FirnError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=str(error))
