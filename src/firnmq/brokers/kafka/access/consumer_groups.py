"""Requests about consumer groups whose coordinator assigns the partitions."""

from __future__ import annotations

from typing import Any

from firnmq.brokers.kafka.access.asked import Asked, Proceed, joined, replaced
from firnmq.brokers.kafka.access.table import DESCRIBE_GROUP, DESCRIBE_TOPIC, READ_GROUP, TEXTS
from firnmq.brokers.kafka.protocol import ErrorCode, Message
from firnmq.brokers.kafka.protocol.messages import consumer_groups
from firnmq.brokers.security.acl import ResourceType

_REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
_REFUSED_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_HIDDEN = "The group has topics that the client is not authorized to describe."


async def heartbeat(
    asked: Asked, request: consumer_groups.ConsumerGroupHeartbeatRequest, proceed: Proceed
) -> Message:
    if not asked.may(READ_GROUP, request.group_id):
        return consumer_groups.ConsumerGroupHeartbeatResponse(
            error_code=_REFUSED, error_message=TEXTS[ResourceType.GROUP]
        )
    names = request.subscribed_topic_names or ()
    _, refused = await asked.split(DESCRIBE_TOPIC, names, str)
    if refused:
        return consumer_groups.ConsumerGroupHeartbeatResponse(
            error_code=_REFUSED_TOPIC, error_message=TEXTS[ResourceType.TOPIC]
        )
    return await proceed(request)


async def describe(
    asked: Asked, request: consumer_groups.ConsumerGroupDescribeRequest, proceed: Proceed
) -> Message:
    allowed, refused = await asked.split(DESCRIBE_GROUP, request.group_ids, str)
    response: Any = await proceed(replaced(request, group_ids=allowed))
    found = []
    async for group in asked.turns.over(response.groups):
        names = dict.fromkeys(
            name for member in group.members for name in member.subscribed_topic_names
        )
        names.update(
            dict.fromkeys(
                topic.topic_name
                for member in group.members
                for assignment in (member.assignment, member.target_assignment)
                for topic in assignment.topic_partitions
            )
        )
        _, hidden = await asked.split(DESCRIBE_TOPIC, names, str)
        if hidden:
            found.append(_without(group.group_id, _REFUSED_TOPIC, _HIDDEN))
        elif request.include_authorized_operations and not group.error_code:
            operations = asked.operations(DESCRIBE_GROUP, group.group_id)
            found.append(replaced(group, authorized_operations=operations))
        else:
            found.append(group)
    text = TEXTS[ResourceType.GROUP]
    answers = [_without(name, _REFUSED, text) for name in dict.fromkeys(refused)]
    return joined(response, groups=[*found, *answers])


def _without(name: str, code: ErrorCode, text: str) -> consumer_groups.DescribedConsumerGroup:
    return consumer_groups.DescribedConsumerGroup(
        error_code=code,
        error_message=text,
        group_id=name,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )
