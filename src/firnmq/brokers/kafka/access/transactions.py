"""Requests of producers: ids, and transactions with their partitions and offsets."""

from __future__ import annotations

from typing import Any

from firnmq.brokers.kafka.access.asked import Asked, Proceed, joined, replaced
from firnmq.brokers.kafka.access.table import (
    IDEMPOTENT_WRITE,
    READ_GROUP,
    READ_TOPIC,
    WRITE_TOPIC,
    WRITE_TRANSACTION,
)
from firnmq.brokers.kafka.protocol import ErrorCode, Message
from firnmq.brokers.kafka.protocol.messages import transactions

_REFUSED_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def init_producer_id(
    asked: Asked, request: transactions.InitProducerIdRequest, proceed: Proceed
) -> Message:
    if request.transactional_id is not None:
        code = asked.refusal(WRITE_TRANSACTION, request.transactional_id)
    elif asked.sees_any(WRITE_TOPIC):
        code = ErrorCode.NONE
    else:
        code = asked.refusal(IDEMPOTENT_WRITE)
    if code:
        return transactions.InitProducerIdResponse(error_code=code, producer_epoch=-1)
    return await proceed(request)


async def add_partitions(
    asked: Asked, request: transactions.AddPartitionsToTxnRequest, proceed: Proceed
) -> Message:
    """Adds all of the partitions or none, so that one that is refused stops the others."""
    code = asked.refusal(WRITE_TRANSACTION, request.transactional_id)
    refused: set[str] = set()
    if not code:
        _, others = await asked.split_topics(WRITE_TOPIC, request.topics)
        if not others:
            return await proceed(request)
        refused = {topic.name for topic in others}
    return transactions.AddPartitionsToTxnResponse(
        results=[
            transactions.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results=[
                    transactions.AddPartitionsToTxnPartitionResult(
                        partition_index=index, error_code=code or _code(topic.name, refused)
                    )
                    async for index in asked.turns.over(topic.partitions)
                ],
            )
            async for topic in asked.turns.over(request.topics)
        ]
    )


def _code(name: str, refused: set[str]) -> ErrorCode:
    return _REFUSED_TOPIC if name in refused else ErrorCode.OPERATION_NOT_ATTEMPTED


async def add_offsets(
    asked: Asked, request: transactions.AddOffsetsToTxnRequest, proceed: Proceed
) -> Message:
    code = asked.refusal(WRITE_TRANSACTION, request.transactional_id)
    code = code or asked.refusal(READ_GROUP, request.group_id)
    if code:
        return transactions.AddOffsetsToTxnResponse(error_code=code)
    return await proceed(request)


async def end(asked: Asked, request: transactions.EndTxnRequest, proceed: Proceed) -> Message:
    code = asked.refusal(WRITE_TRANSACTION, request.transactional_id)
    if code:
        return transactions.EndTxnResponse(error_code=code)
    return await proceed(request)


async def commit_offsets(
    asked: Asked, request: transactions.TxnOffsetCommitRequest, proceed: Proceed
) -> Message:
    code = asked.refusal(WRITE_TRANSACTION, request.transactional_id)
    code = code or asked.refusal(READ_GROUP, request.group_id)
    allowed: list[transactions.TxnOffsetCommitRequestTopic] = []
    refused = list(request.topics)
    if not code:
        code = _REFUSED_TOPIC
        allowed, refused = await asked.split_topics(READ_TOPIC, request.topics)
        if not refused:
            return await proceed(request)
    answers = [
        transactions.TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                transactions.TxnOffsetCommitResponsePartition(
                    partition_index=each.partition_index, error_code=code
                )
                async for each in asked.turns.over(topic.partitions)
            ],
        )
        async for topic in asked.turns.over(refused)
    ]
    if not allowed:
        return transactions.TxnOffsetCommitResponse(topics=answers)
    response: Any = await proceed(replaced(request, topics=allowed))
    return joined(response, topics=[*response.topics, *answers])
