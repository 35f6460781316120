"""Requests about quotas and users: each needs one operation on the cluster."""

from __future__ import annotations

from firnmq.brokers.kafka.access.asked import Asked, Proceed
from firnmq.brokers.kafka.access.table import (
    ALTER_CLUSTER,
    ALTER_CLUSTER_CONFIGS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CLUSTER_CONFIGS,
    TEXTS,
)
from firnmq.brokers.kafka.protocol import ErrorCode, Message
from firnmq.brokers.kafka.protocol.messages import clients
from firnmq.brokers.security.acl import ResourceType

_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_TEXT = TEXTS[ResourceType.CLUSTER]


async def describe_quotas(
    asked: Asked, request: clients.DescribeClientQuotasRequest, proceed: Proceed
) -> Message:
    if asked.may(DESCRIBE_CLUSTER_CONFIGS):
        return await proceed(request)
    return clients.DescribeClientQuotasResponse(
        error_code=_REFUSED, error_message=_TEXT, entries=None
    )


async def alter_quotas(
    asked: Asked, request: clients.AlterClientQuotasRequest, proceed: Proceed
) -> Message:
    if asked.may(ALTER_CLUSTER_CONFIGS):
        return await proceed(request)
    return clients.AlterClientQuotasResponse(
        entries=[
            clients.AlteredQuotaResult(
                error_code=_REFUSED, error_message=_TEXT, entity=entry.entity
            )
            async for entry in asked.turns.over(request.entries)
        ]
    )


async def describe_users(
    asked: Asked, request: clients.DescribeUserScramCredentialsRequest, proceed: Proceed
) -> Message:
    if asked.may(DESCRIBE_CLUSTER):
        return await proceed(request)
    return clients.DescribeUserScramCredentialsResponse(
        error_code=_REFUSED, error_message=_TEXT, results=[]
    )


async def alter_users(
    asked: Asked, request: clients.AlterUserScramCredentialsRequest, proceed: Proceed
) -> Message:
    if asked.may(ALTER_CLUSTER):
        return await proceed(request)
    names = [each.name for each in request.deletions]
    names += [each.name for each in request.upsertions]
    return clients.AlterUserScramCredentialsResponse(
        results=[
            clients.AlteredScramUser(user=name, error_code=_REFUSED, error_message=_TEXT)
            for name in dict.fromkeys(names)
        ]
    )
