"""Requests of administrators' tools. Most need one operation on the cluster."""

from __future__ import annotations

from typing import Any

from firnmq.brokers.kafka.access.asked import Asked, Proceed, joined, replaced
from firnmq.brokers.kafka.access.table import (
    ALTER_CLUSTER,
    DESCRIBE_CLUSTER,
    DESCRIBE_CLUSTER_CONFIGS,
    DESCRIBE_TOPIC,
    DESCRIBE_TRANSACTION,
    READ_TOPIC,
    TEXTS,
)
from firnmq.brokers.kafka.protocol import ErrorCode, Message
from firnmq.brokers.kafka.protocol.messages import tools
from firnmq.brokers.kafka.protocol.messages import topic_partitions as pages
from firnmq.brokers.security.acl import ResourceType

_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_TEXT = TEXTS[ResourceType.CLUSTER]
_REFUSED_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def log_dirs(
    asked: Asked, request: tools.DescribeLogDirsRequest, proceed: Proceed
) -> Message:
    if asked.may(DESCRIBE_CLUSTER):
        return await proceed(request)
    return tools.DescribeLogDirsResponse(error_code=_REFUSED, results=[])


async def quorum(asked: Asked, request: pages.DescribeQuorumRequest, proceed: Proceed) -> Message:
    if asked.may(DESCRIBE_CLUSTER):
        return await proceed(request)
    return pages.DescribeQuorumResponse(error_code=_REFUSED, topics=[])


async def topic_partitions(
    asked: Asked, request: pages.DescribeTopicPartitionsRequest, proceed: Proceed
) -> Message:
    """Where all topics are asked for, the handler shows those that the client may describe."""
    response: Any = pages.DescribeTopicPartitionsResponse(topics=[])
    allowed, refused = await asked.split_topics(DESCRIBE_TOPIC, request.topics)
    if allowed or not refused:
        response = await proceed(replaced(request, topics=allowed))
    shown = [
        replaced(
            topic, topic_authorized_operations=asked.operations(DESCRIBE_TOPIC, topic.name or "")
        )
        async for topic in asked.turns.over(response.topics)
    ]
    answers = [
        pages.PagedTopicPartitions(
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name, partitions=[]
        )
        for name in dict.fromkeys(topic.name for topic in refused)
    ]
    return joined(response, topics=[*shown, *answers])


async def elect_leaders(
    asked: Asked, request: tools.ElectLeadersRequest, proceed: Proceed
) -> Message:
    if asked.may(ALTER_CLUSTER):
        return await proceed(request)
    return tools.ElectLeadersResponse(
        error_code=_REFUSED,
        replica_election_results=[
            tools.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    tools.ElectionPartitionResult(
                        partition_id=index, error_code=_REFUSED, error_message=_TEXT
                    )
                    async for index in asked.turns.over(topic.partitions)
                ],
            )
            async for topic in asked.turns.over(request.topic_partitions or ())
        ],
    )


async def reassign(
    asked: Asked, request: tools.AlterPartitionReassignmentsRequest, proceed: Proceed
) -> Message:
    if asked.may(ALTER_CLUSTER):
        return await proceed(request)
    return tools.AlterPartitionReassignmentsResponse(
        error_code=_REFUSED, error_message=_TEXT, responses=[]
    )


async def list_reassignments(
    asked: Asked, request: tools.ListPartitionReassignmentsRequest, proceed: Proceed
) -> Message:
    if asked.may(DESCRIBE_CLUSTER):
        return await proceed(request)
    return tools.ListPartitionReassignmentsResponse(
        error_code=_REFUSED, error_message=_TEXT, topics=[]
    )


async def list_config_resources(
    asked: Asked, request: tools.ListConfigResourcesRequest, proceed: Proceed
) -> Message:
    if asked.may(DESCRIBE_CLUSTER_CONFIGS):
        return await proceed(request)
    return tools.ListConfigResourcesResponse(error_code=_REFUSED, config_resources=[])


async def producers(
    asked: Asked, request: tools.DescribeProducersRequest, proceed: Proceed
) -> Message:
    allowed, refused = await asked.split_topics(READ_TOPIC, request.topics)
    response: Any = await proceed(replaced(request, topics=allowed))
    answers = [
        tools.ProducersTopicResponse(
            name=topic.name,
            partitions=[
                tools.ProducersPartitionResponse(
                    partition_index=index,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    error_message=TEXTS[ResourceType.TOPIC],
                    active_producers=[],
                )
                async for index in asked.turns.over(topic.partition_indexes)
            ],
        )
        async for topic in asked.turns.over(refused)
    ]
    return joined(response, topics=[*response.topics, *answers])


async def list_transactions(
    asked: Asked, request: tools.ListTransactionsRequest, proceed: Proceed
) -> Message:
    response: Any = await proceed(request)
    shown = [
        each
        async for each in asked.turns.over(response.transaction_states)
        if asked.sees(DESCRIBE_TRANSACTION, each.transactional_id)
    ]
    return joined(response, transaction_states=shown)


async def describe_transactions(
    asked: Asked, request: tools.DescribeTransactionsRequest, proceed: Proceed
) -> Message:
    """Without the topics that the client may not describe."""
    allowed, refused = await asked.split(DESCRIBE_TRANSACTION, request.transactional_ids, str)
    response: Any = await proceed(replaced(request, transactional_ids=allowed))
    shown = [
        replaced(
            state,
            topics=[
                topic
                async for topic in asked.turns.over(state.topics)
                if asked.sees_topic(DESCRIBE_TOPIC, topic)
            ],
        )
        async for state in asked.turns.over(response.transaction_states)
    ]
    answers = [
        tools.DescribedTransactionState(error_code=_REFUSED_TRANSACTION, transactional_id=name)
        for name in dict.fromkeys(refused)
    ]
    return joined(response, transaction_states=[*shown, *answers])
