"""Requests about options, which belong to topics, groups or the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from firnmq.brokers.kafka.access.asked import Asked, Proceed, joined, replaced
from firnmq.brokers.kafka.access.table import (
    ALTER_CLUSTER_CONFIGS,
    ALTER_GROUP_CONFIGS,
    ALTER_TOPIC_CONFIGS,
    CODES,
    DESCRIBE_CLUSTER_CONFIGS,
    DESCRIBE_GROUP_CONFIGS,
    DESCRIBE_TOPIC_CONFIGS,
    TEXTS,
    Need,
)
from firnmq.brokers.kafka.protocol import Message
from firnmq.brokers.kafka.protocol.messages import admin
from firnmq.brokers.security.acl import CLUSTER_NAME, ResourceType

_TOPIC, _GROUP = 2, 32
"""Types of resources in these requests. What has another type belongs to the cluster."""

_TO_DESCRIBE = {_TOPIC: DESCRIBE_TOPIC_CONFIGS, _GROUP: DESCRIBE_GROUP_CONFIGS}
_TO_ALTER = {_TOPIC: ALTER_TOPIC_CONFIGS, _GROUP: ALTER_GROUP_CONFIGS}


async def describe(
    asked: Asked, request: admin.DescribeConfigsRequest, proceed: Proceed
) -> Message:
    allowed = []
    refused: dict[tuple[int, str], Need] = {}
    async for resource in asked.turns.over(request.resources):
        kind, name = resource.resource_type, resource.resource_name
        need = _TO_DESCRIBE.get(kind, DESCRIBE_CLUSTER_CONFIGS)
        if _may(asked, need, name):
            allowed.append(resource)
        else:
            refused[kind, name] = need
    response: Any = await proceed(replaced(request, resources=allowed))
    answers = [
        admin.DescribeConfigsResult(
            error_code=CODES[need.kind],
            error_message=TEXTS[need.kind],
            resource_type=kind,
            resource_name=name,
            configs=[],
        )
        for (kind, name), need in refused.items()
    ]
    return joined(response, results=[*response.results, *answers])


async def alter(
    asked: Asked,
    request: admin.AlterConfigsRequest | admin.IncrementalAlterConfigsRequest,
    proceed: Proceed,
) -> Message:
    allowed, refused = [], []
    resources: Sequence[Any] = request.resources
    async for resource in asked.turns.over(resources):
        kind, name = resource.resource_type, resource.resource_name
        need = _TO_ALTER.get(kind, ALTER_CLUSTER_CONFIGS)
        if _may(asked, need, name):
            allowed.append(resource)
        else:
            refused.append(
                admin.AlterConfigsResourceResponse(
                    error_code=CODES[need.kind],
                    error_message=TEXTS[need.kind],
                    resource_type=kind,
                    resource_name=name,
                )
            )
    response: Any = await proceed(replaced(request, resources=allowed))
    return joined(response, responses=[*response.responses, *refused])


def _may(asked: Asked, need: Need, name: str) -> bool:
    return asked.may(need, CLUSTER_NAME if need.kind is ResourceType.CLUSTER else name)
