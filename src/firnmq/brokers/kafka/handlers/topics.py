"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords."""

from __future__ import annotations

import dataclasses
from collections import Counter
from uuid import UUID

from firnmq.adapter import SHARDS_MAX, Topic
from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.configs import ConfigSource, is_own, kafka_view, topic_config
from firnmq.brokers.kafka.failures import code_of
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
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.net.loop_turns import Turns
from firnmq.config import TopicConfig, check_topic_name
from firnmq.errors import (
    AlreadyExists,
    FirnError,
    InvalidArgument,
    OffsetOutOfRange,
    TooFewNodes,
    TooManyShards,
)

_HIGH_WATERMARK = -1
"""In place of an offset: everything goes that can be read."""
_CONFIGS_SINCE = 5
"""Version of CreateTopics from which on its answer has the options of each topic."""
_TWICE = "the request names this topic twice"
_TOO_MANY = f"a topic has at most {SHARDS_MAX:,} partitions"


class TopicHandler:
    def __init__(self, storage: KafkaStorage, config: KafkaConfig, turns: Turns) -> None:
        self._turns = turns
        self._storage = storage
        self._config = config
        self._last_factor: tuple[TopicConfig, int, TopicConfig]
        """The last options that a request gave another number of replicas, that number, and both
        together."""
        self._last_factor = (config.topic_defaults, 0, config.topic_defaults)

    async def create(self, request: CreateTopicsRequest, version: int) -> CreateTopicsResponse:
        counts = Counter(topic.name for topic in request.topics)
        shown: dict[TopicConfig, list[CreatableTopicConfigs]] | None = None
        if version >= _CONFIGS_SINCE:
            shown = {}  # Topics of the same configuration share what is shown of it.
        results = []
        planned_count = 0
        async for topic in self._turns.over(request.topics):
            if counts[topic.name] > 1:
                results.append(
                    CreatableTopicResult(
                        name=topic.name,
                        error_code=ErrorCode.INVALID_REQUEST,
                        error_message=_TWICE,
                    )
                )
                continue
            result = await self._create(topic, request.validate_only, planned_count, shown)
            if request.validate_only and not result.error_code:
                planned_count += result.num_partitions
            results.append(result)
        return CreateTopicsResponse(topics=results)

    async def delete(self, request: DeleteTopicsRequest, version: int) -> DeleteTopicsResponse:
        if version >= 6:
            wanted = self._turns.distinct(request.topics)
            responses = [await self._delete(each.topic_id, each.name) async for each in wanted]
        else:
            names = self._turns.distinct(request.topic_names)
            responses = [await self._delete(ZERO_UUID, name) async for name in names]
        return DeleteTopicsResponse(responses=responses)

    async def create_partitions(self, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        counts = Counter(topic.name for topic in request.topics)
        results = []
        planned_count = 0
        async for topic in self._turns.over(request.topics):
            if counts[topic.name] > 1:
                results.append(_not_grown(topic.name, ErrorCode.INVALID_REQUEST, _TWICE))
                continue
            result, new_count = await self._grow(topic, request.validate_only, planned_count)
            if request.validate_only:
                planned_count += new_count
            results.append(result)
        return CreatePartitionsResponse(results=results)

    async def delete_records(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        topics = []
        async for topic in self._turns.over(request.topics):
            partitions = [
                await self._trim(topic.name, each)
                async for each in self._turns.over(topic.partitions)
            ]
            topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
        return DeleteRecordsResponse(topics=topics)

    async def _create(
        self,
        wanted: CreatableTopic,
        validate_only: bool,
        planned_count: int,
        shown: dict[TopicConfig, list[CreatableTopicConfigs]] | None,
    ) -> CreatableTopicResult:
        """`planned_count`: partitions of topics before this one that are only validated."""
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
                self._storage.manager.check_room(wanted.name, count, config, planned_count)
                if config.storage_type not in self._storage.manager.storage_types():
                    raise InvalidArgument("storage.type", f"{config.storage_type!r} is not known")
                config.check_new()
                config = self._with_replicas(config, wanted)
            except TooFewNodes as error:
                code, message = code_of(error), str(error)
            except InvalidArgument as error:
                code, message = ErrorCode.INVALID_CONFIG, str(error)
            except TooManyShards as error:
                code, message = code_of(error), str(error)
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
        configs: list[CreatableTopicConfigs] = []
        if shown is not None:
            defaults = self._config.topic_defaults
            configs = shown.get(config) or shown.setdefault(config, _shown(config, defaults))
        return CreatableTopicResult(
            name=wanted.name,
            num_partitions=count,
            replication_factor=config.replication_factor or 1,
            configs=configs,
            topic_id=ZERO_UUID if topic is None else UUID(topic.topic_id),
        )

    def _with_replicas(self, config: TopicConfig, wanted: CreatableTopic) -> TopicConfig:
        """The options with the number of replicas that the request, its configs or the cluster's
        default ask for."""
        factor = 1 if wanted.assignments else wanted.replication_factor
        if factor not in (-1, config.replication_factor):
            # The topics of a request mostly have the same options: they share one value.
            options, last_factor, changed = self._last_factor
            if options is not config or last_factor != factor:
                changed = dataclasses.replace(config, replication_factor=factor)
                self._last_factor = (config, factor, changed)
            config = changed
        return self._storage.manager.with_replicas(config)

    def _judge_layout(self, wanted: CreatableTopic) -> tuple[ErrorCode, str, int]:
        if wanted.assignments:
            indexes = sorted(each.partition_index for each in wanted.assignments)
            nodes = {node for each in wanted.assignments for node in each.broker_ids}
            if indexes != list(range(len(indexes))) or nodes != {self._config.node_id}:
                text = f"this cluster has one node, {self._config.node_id}"
                return ErrorCode.INVALID_REPLICA_ASSIGNMENT, text, 0
            return self._judge_count(len(indexes))
        if wanted.replication_factor != -1 and wanted.replication_factor < 1:
            text = "there must be at least one replica, or -1 for the default"
            return ErrorCode.INVALID_REPLICATION_FACTOR, text, 0
        if wanted.num_partitions == -1:
            return ErrorCode.NONE, "", self._config.auto_create_shards
        return self._judge_count(wanted.num_partitions)

    def _judge_count(self, count: int) -> tuple[ErrorCode, str, int]:
        if count < 1:
            return ErrorCode.INVALID_PARTITIONS, "there must be at least one partition", 0
        if count > SHARDS_MAX:
            return ErrorCode.INVALID_PARTITIONS, _TOO_MANY, 0
        return ErrorCode.NONE, "", count

    async def _delete(self, topic_id: UUID, name: str | None) -> DeletableTopicResult:
        if name is None:
            topic = self._storage.catalog.with_id(topic_id.hex)
            name = None if topic is None else topic.name
        if name is None:
            return DeletableTopicResult(
                name=None, topic_id=topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID
            )
        try:
            await self._storage.manager.delete_topic(name)
        except FirnError as error:
            return DeletableTopicResult(
                name=name,
                topic_id=topic_id,
                error_code=code_of(error),
                error_message=str(error),
            )
        return DeletableTopicResult(name=name, topic_id=topic_id)

    async def _grow(
        self, wanted: CreatePartitionsTopic, validate_only: bool, planned_count: int
    ) -> tuple[CreatePartitionsTopicResult, int]:
        """The answer, and how many partitions the topic gets; `planned_count` as for `_create`."""
        try:
            topic = self._storage.topic(wanted.name)
            if wanted.count <= topic.shard_count:
                text = f"there are {topic.shard_count} already; partitions never go"
                return _not_grown(wanted.name, ErrorCode.INVALID_PARTITIONS, text), 0
            if wanted.count > SHARDS_MAX:
                return _not_grown(wanted.name, ErrorCode.INVALID_PARTITIONS, _TOO_MANY), 0
            self._storage.manager.check_room(wanted.name, wanted.count, topic.config, planned_count)
            if not validate_only:
                await self._storage.manager.grow_topic(wanted.name, wanted.count)
        except FirnError as error:
            # Another client may have made as many partitions since the check.
            is_count = isinstance(error, InvalidArgument)
            code = ErrorCode.INVALID_PARTITIONS if is_count else code_of(error)
            return _not_grown(wanted.name, code, str(error)), 0
        return CreatePartitionsTopicResult(name=wanted.name), wanted.count - topic.shard_count

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
            if offset < 0:
                start, end = await self._storage.bounds(name, index)
                if offset != _HIGH_WATERMARK:
                    raise OffsetOutOfRange(offset, start=start, end=end)
                offset = end
            low = await self._storage.delete_before(name, index, offset)
        except FirnError as error:
            return DeleteRecordsPartitionResult(
                partition_index=index, low_watermark=-1, error_code=code_of(error)
            )
        return DeleteRecordsPartitionResult(partition_index=index, low_watermark=low)


def _failed(name: str, code: ErrorCode, error: FirnError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=str(error))


def _not_grown(name: str, code: ErrorCode, text: str) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=code, error_message=text)


def _shown(config: TopicConfig, defaults: TopicConfig) -> list[CreatableTopicConfigs]:
    before = kafka_view(defaults)
    return [
        CreatableTopicConfigs(
            name=name,
            value=value,
            config_source=(
                ConfigSource.TOPIC
                if is_own(name, value, before.get(name))
                else ConfigSource.DEFAULT
            ),
        )
        for name, value in kafka_view(config).items()
    ]
