"""Requests about topics: those that a client may not use are taken out, and answered here."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from firnmq.brokers.kafka.access.asked import Asked, Proceed, joined, named_as, replaced
from firnmq.brokers.kafka.access.table import (
    ALTER_TOPIC,
    CLUSTER_ACTION,
    CREATE_CLUSTER,
    CREATE_TOPIC,
    DELETE_TOPIC,
    DESCRIBE_CLUSTER,
    DESCRIBE_TOPIC,
    DESCRIBE_TOPIC_CONFIGS,
    READ_TOPIC,
    TEXTS,
    WRITE_TOPIC,
    WRITE_TRANSACTION,
)
from firnmq.brokers.kafka.protocol import ZERO_UUID, ErrorCode, Message
from firnmq.brokers.kafka.protocol.messages import admin, metadata, produce_fetch
from firnmq.brokers.security.acl import ResourceType
from firnmq.record.batch import ATTRIBUTE_TRANSACTIONAL, attributes_of

_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_REFUSED_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_TEXT = TEXTS[ResourceType.TOPIC]


# Produce and Fetch --------------------------------------------------------------------------------


async def judge_produce(
    asked: Asked, request: produce_fetch.ProduceRequest
) -> tuple[produce_fetch.ProduceRequest, list[produce_fetch.TopicProduceResponse]]:
    """What is left of a request, and the answers to the rest."""
    code, refused = _REFUSED_TRANSACTION, list(request.topic_data)
    allowed: list[produce_fetch.TopicProduceData] = []
    if await _may_write_transaction(asked, request):
        code = _REFUSED
        allowed, refused = await asked.split_topics(WRITE_TOPIC, request.topic_data)
        if not refused:
            return request, []
    answers = [
        produce_fetch.TopicProduceResponse(
            **named_as(topic),
            partition_responses=[
                produce_fetch.PartitionProduceResponse(
                    index=each.index, error_code=code, base_offset=-1
                )
                async for each in asked.turns.over(topic.partition_data)
            ],
        )
        async for topic in asked.turns.over(refused)
    ]
    return replaced(request, topic_data=allowed), answers


async def _may_write_transaction(asked: Asked, request: produce_fetch.ProduceRequest) -> bool:
    async for topic in asked.turns.over(request.topic_data):
        async for each in asked.turns.over(topic.partition_data):
            if _is_transactional(each):
                name = request.transactional_id
                return asked.may(WRITE_TRANSACTION, "" if name is None else name)
    return True


def _is_transactional(data: produce_fetch.PartitionProduceData) -> bool:
    records: Any = data.records
    return bool(records) and bool(attributes_of(records) & ATTRIBUTE_TRANSACTIONAL)


def join_produce(
    response: produce_fetch.ProduceResponse, answers: list[produce_fetch.TopicProduceResponse]
) -> produce_fetch.ProduceResponse:
    return replaced(response, responses=[*response.responses, *answers])


def replica_of(request: Any) -> int:
    """The node that fetches; negative if it is a consumer."""
    state = getattr(request, "replica_state", None)
    replica: int = max(request.replica_id, -1 if state is None else state.replica_id)
    return replica


async def fetch(asked: Asked, request: produce_fetch.FetchRequest, proceed: Proceed) -> Message:
    if replica_of(request) >= 0:
        is_replica = asked.may(CLUSTER_ACTION)
        allowed = list(request.topics) if is_replica else []
        refused = [] if is_replica else list(request.topics)
    else:
        allowed, refused = await asked.split_topics(READ_TOPIC, request.topics)
    if not refused:
        return await proceed(request)
    # An error is told at once: it must not wait for records of other topics.
    left = replaced(request, topics=allowed, max_wait_ms=0)
    response: Any = await proceed(left)
    answers = [
        produce_fetch.FetchableTopicResponse(
            **named_as(topic),
            partitions=[
                produce_fetch.PartitionData(
                    partition_index=each.partition, error_code=_REFUSED, high_watermark=-1
                )
                async for each in asked.turns.over(topic.partitions)
            ],
        )
        async for topic in asked.turns.over(refused)
    ]
    return joined(response, responses=[*response.responses, *answers])


async def list_offsets(
    asked: Asked, request: produce_fetch.ListOffsetsRequest, proceed: Proceed
) -> Message:
    allowed, refused = await asked.split_topics(DESCRIBE_TOPIC, request.topics)
    if not refused:
        return await proceed(request)
    response: Any = await proceed(replaced(request, topics=allowed))
    answers = [
        produce_fetch.ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[
                produce_fetch.ListOffsetsPartitionResponse(
                    partition_index=each.partition_index, error_code=_REFUSED
                )
                async for each in asked.turns.over(topic.partitions)
            ],
        )
        async for topic in asked.turns.over(refused)
    ]
    return joined(response, topics=[*response.topics, *answers])


async def offset_for_leader_epoch(
    asked: Asked, request: produce_fetch.OffsetForLeaderEpochRequest, proceed: Proceed
) -> Message:
    if asked.sees(CLUSTER_ACTION):
        return await proceed(request)
    allowed, refused = await asked.split_topics(DESCRIBE_TOPIC, request.topics)
    if not refused:
        return await proceed(request)
    response: Any = await proceed(replaced(request, topics=allowed))
    answers = [
        produce_fetch.OffsetForLeaderTopicResult(
            topic=topic.topic,
            partitions=[
                produce_fetch.OffsetForLeaderPartitionResult(
                    partition=each.partition, error_code=_REFUSED
                )
                async for each in asked.turns.over(topic.partitions)
            ],
        )
        async for topic in asked.turns.over(refused)
    ]
    return joined(response, topics=[*response.topics, *answers])


# Metadata -----------------------------------------------------------------------------------------


async def describe(asked: Asked, request: metadata.MetadataRequest, proceed: Proceed) -> Message:
    """A list of all topics has those that the client may describe. A topic that is named is refused
    whether or not there is one, and an id of one is unknown."""
    refused: list[metadata.MetadataResponseTopic] = []
    if request.topics is None or (asked.version == 0 and not request.topics):
        response: Any = await proceed(request)
        shown = [
            topic
            async for topic in asked.turns.over(response.topics)
            if asked.sees(DESCRIBE_TOPIC, topic.name)
        ]
    else:
        allowed = []
        async for wanted in asked.turns.distinct(request.topics):
            refusal = _judge_wanted(asked, wanted, request.allow_auto_topic_creation)
            if refusal is None:
                allowed.append(wanted)
            else:
                refused.append(refusal)
        # In version 0 a list without topics would ask for all of them.
        left = replaced(request, topics=allowed)
        response = await proceed(left if allowed or asked.version else _none_of(request))
        shown = list(response.topics)
        if not allowed:
            shown = []
    if request.include_topic_authorized_operations:
        shown = [_with_operations(asked, topic) async for topic in asked.turns.over(shown)]
    response = replaced(response, topics=[*shown, *refused])
    if request.include_cluster_authorized_operations:
        return joined(response, cluster_authorized_operations=_of_cluster(asked))
    return response  # type: ignore[no-any-return]


def _none_of(request: metadata.MetadataRequest) -> metadata.MetadataRequest:
    """A request whose answer names the brokers, and a topic that there cannot be."""
    return replaced(
        request,
        topics=[metadata.MetadataRequestTopic(name="")],
        allow_auto_topic_creation=False,
    )


def _judge_wanted(
    asked: Asked, wanted: metadata.MetadataRequestTopic, may_create: bool
) -> metadata.MetadataResponseTopic | None:
    name = wanted.name
    if name is None or wanted.topic_id != ZERO_UUID:
        return _judge_id(asked, wanted.topic_id)
    if not asked.may(DESCRIBE_TOPIC, name):
        return metadata.MetadataResponseTopic(name=name, error_code=_REFUSED, partitions=[])
    if may_create and asked.topics.is_created_when_named(name) and not _may_create(asked, name):
        return metadata.MetadataResponseTopic(name=name, error_code=_REFUSED, partitions=[])
    return None


def _judge_id(asked: Asked, topic_id: UUID) -> metadata.MetadataResponseTopic | None:
    name = asked.topics.name_of(topic_id.hex)
    if name is None or asked.may(DESCRIBE_TOPIC, name):
        return None
    return metadata.MetadataResponseTopic(
        name=None, topic_id=topic_id, error_code=ErrorCode.UNKNOWN_TOPIC_ID, partitions=[]
    )


def _may_create(asked: Asked, name: str) -> bool:
    return asked.sees(CREATE_CLUSTER) or asked.may(CREATE_TOPIC, name)


def _with_operations(
    asked: Asked, topic: metadata.MetadataResponseTopic
) -> metadata.MetadataResponseTopic:
    if topic.error_code or topic.name is None:
        return topic
    operations = asked.operations(DESCRIBE_TOPIC, topic.name)
    return replaced(topic, topic_authorized_operations=operations)


def _of_cluster(asked: Asked) -> int:
    return asked.operations(DESCRIBE_CLUSTER) if asked.sees(DESCRIBE_CLUSTER) else 0


async def describe_cluster(
    asked: Asked, request: metadata.DescribeClusterRequest, proceed: Proceed
) -> Message:
    response = await proceed(request)
    if not request.include_cluster_authorized_operations:
        return response
    assert isinstance(response, metadata.DescribeClusterResponse)
    return joined(response, cluster_authorized_operations=_of_cluster(asked))


# Changes ------------------------------------------------------------------------------------------


async def create(asked: Asked, request: admin.CreateTopicsRequest, proceed: Proceed) -> Message:
    refused: dict[str, None] = {}
    allowed = []
    async for topic in asked.turns.over(request.topics):
        if _may_create(asked, topic.name):
            allowed.append(topic)
        else:
            refused[topic.name] = None
    response: Any = await proceed(replaced(request, topics=allowed))
    made = [
        result
        if result.error_code or asked.sees(DESCRIBE_TOPIC_CONFIGS, result.name)
        else replaced(
            result,
            topic_config_error_code=_REFUSED,
            num_partitions=-1,
            replication_factor=-1,
            configs=(),
        )
        async for result in asked.turns.over(response.topics)
    ]
    answers = [
        admin.CreatableTopicResult(name=name, error_code=_REFUSED, error_message=_TEXT)
        for name in refused
    ]
    return joined(response, topics=[*made, *answers])


async def delete(asked: Asked, request: admin.DeleteTopicsRequest, proceed: Proceed) -> Message:
    refused: list[admin.DeletableTopicResult] = []
    names, states = [], []
    async for name in asked.turns.distinct(request.topic_names):
        if asked.may(DELETE_TOPIC, name):
            names.append(name)
        else:
            refused.append(_not_deleted(name, ZERO_UUID))
    async for state in asked.turns.distinct(request.topics):
        found = state.name
        if found is None:
            found = asked.topics.name_of(state.topic_id.hex)
        if found is None or asked.may(DELETE_TOPIC, found):
            states.append(state)
        else:
            is_shown = state.name is not None or asked.sees(DESCRIBE_TOPIC, found)
            refused.append(_not_deleted(found if is_shown else None, state.topic_id))
    response: Any = await proceed(replaced(request, topics=states, topic_names=names))
    return joined(response, responses=[*response.responses, *refused])


def _not_deleted(name: str | None, topic_id: UUID) -> admin.DeletableTopicResult:
    return admin.DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=_REFUSED, error_message=_TEXT
    )


async def create_partitions(
    asked: Asked, request: admin.CreatePartitionsRequest, proceed: Proceed
) -> Message:
    allowed, refused = await asked.split_topics(ALTER_TOPIC, request.topics)
    if not refused:
        return await proceed(request)
    response: Any = await proceed(replaced(request, topics=allowed))
    answers = [
        admin.CreatePartitionsTopicResult(name=name, error_code=_REFUSED, error_message=_TEXT)
        for name in dict.fromkeys(topic.name for topic in refused)
    ]
    return joined(response, results=[*response.results, *answers])


async def delete_records(
    asked: Asked, request: admin.DeleteRecordsRequest, proceed: Proceed
) -> Message:
    allowed, refused = await asked.split_topics(DELETE_TOPIC, request.topics)
    if not refused:
        return await proceed(request)
    response: Any = await proceed(replaced(request, topics=allowed))
    answers = [
        admin.DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[
                admin.DeleteRecordsPartitionResult(
                    partition_index=each.partition_index, low_watermark=-1, error_code=_REFUSED
                )
                async for each in asked.turns.over(topic.partitions)
            ],
        )
        async for topic in asked.turns.over(refused)
    ]
    return joined(response, topics=[*response.topics, *answers])
