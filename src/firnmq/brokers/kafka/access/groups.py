"""Requests about groups: those of a group that the client may not use are answered here."""

from __future__ import annotations

from typing import Any

from firnmq.brokers.kafka.access.asked import Asked, Proceed, joined, named_as, replaced
from firnmq.brokers.kafka.access.table import (
    CODES,
    DELETE_GROUP,
    DESCRIBE_CLUSTER,
    DESCRIBE_GROUP,
    DESCRIBE_TOPIC,
    DESCRIBE_TRANSACTION,
    READ_GROUP,
    READ_TOPIC,
    TEXTS,
)
from firnmq.brokers.kafka.protocol import ErrorCode, Message
from firnmq.brokers.kafka.protocol.messages import groups, metadata, offsets

_REFUSED = ErrorCode.GROUP_AUTHORIZATION_FAILED
_REFUSED_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_KEYS = {0: DESCRIBE_GROUP, 1: DESCRIBE_TRANSACTION}
"""What the types of keys in FindCoordinator are."""
_KEYS_SINCE, _GROUPS_SINCE = 4, 8
"""Versions from which on FindCoordinator has several keys, and OffsetFetch several groups."""
_CODE_SINCE = 2
"""Version of OffsetFetch from which on its answer has a code for the group."""


# Members ------------------------------------------------------------------------------------------


async def join(asked: Asked, request: groups.JoinGroupRequest, proceed: Proceed) -> Message:
    if asked.may(READ_GROUP, request.group_id):
        return await proceed(request)
    return groups.JoinGroupResponse(
        error_code=_REFUSED,
        protocol_name="",
        leader="",
        member_id=request.member_id,
        members=[],
    )


async def sync(asked: Asked, request: groups.SyncGroupRequest, proceed: Proceed) -> Message:
    if asked.may(READ_GROUP, request.group_id):
        return await proceed(request)
    return groups.SyncGroupResponse(error_code=_REFUSED, assignment=b"")


async def heartbeat(asked: Asked, request: groups.HeartbeatRequest, proceed: Proceed) -> Message:
    if asked.may(READ_GROUP, request.group_id):
        return await proceed(request)
    return groups.HeartbeatResponse(error_code=_REFUSED)


async def leave(asked: Asked, request: groups.LeaveGroupRequest, proceed: Proceed) -> Message:
    if asked.may(READ_GROUP, request.group_id):
        return await proceed(request)
    return groups.LeaveGroupResponse(error_code=_REFUSED)


# Offsets ------------------------------------------------------------------------------------------


async def commit(asked: Asked, request: offsets.OffsetCommitRequest, proceed: Proceed) -> Message:
    code, refused = _REFUSED, list(request.topics)
    allowed: list[offsets.OffsetCommitRequestTopic] = []
    if asked.may(READ_GROUP, request.group_id):
        code = _REFUSED_TOPIC
        allowed, refused = await asked.split_topics(READ_TOPIC, request.topics)
        if not refused:
            return await proceed(request)
    answers = [
        offsets.OffsetCommitResponseTopic(
            **named_as(topic),
            partitions=[
                offsets.OffsetCommitResponsePartition(
                    partition_index=each.partition_index, error_code=code
                )
                async for each in asked.turns.over(topic.partitions)
            ],
        )
        async for topic in asked.turns.over(refused)
    ]
    if not allowed:
        return offsets.OffsetCommitResponse(topics=answers)
    response: Any = await proceed(replaced(request, topics=allowed))
    return joined(response, topics=[*response.topics, *answers])


async def fetch_offsets(
    asked: Asked, request: offsets.OffsetFetchRequest, proceed: Proceed
) -> Message:
    if asked.version >= _GROUPS_SINCE:
        return await _fetch_of_groups(asked, request, proceed)
    if not asked.may(DESCRIBE_GROUP, request.group_id):
        topics = list(request.topics or ()) if asked.version < _CODE_SINCE else []
        refused = await _unread(asked, topics, _REFUSED)
        return offsets.OffsetFetchResponse(topics=refused, error_code=_REFUSED)
    if request.topics is None:
        response: Any = await proceed(request)
        return joined(response, topics=await _shown(asked, response.topics))
    allowed, others = await asked.split_topics(DESCRIBE_TOPIC, request.topics)
    response = await proceed(replaced(request, topics=allowed))
    refused = await _unread(asked, others, _REFUSED_TOPIC)
    return joined(response, topics=[*response.topics, *refused])


async def _fetch_of_groups(
    asked: Asked, request: offsets.OffsetFetchRequest, proceed: Proceed
) -> Message:
    refused = []
    allowed = []
    unread: dict[str, list[offsets.OffsetFetchResponseTopic]] = {}
    async for group in asked.turns.over(request.groups):
        name = group.group_id
        if not asked.may(DESCRIBE_GROUP, name):
            refused.append(
                offsets.OffsetFetchResponseGroup(group_id=name, topics=[], error_code=_REFUSED)
            )
        elif group.topics is None:
            allowed.append(group)
        else:
            topics, others = await asked.split_topics(DESCRIBE_TOPIC, group.topics)
            allowed.append(replaced(group, topics=topics))
            answers = await _unread(asked, others, _REFUSED_TOPIC)
            unread.setdefault(name, []).extend(answers)
    response: Any = await proceed(replaced(request, groups=allowed))
    shown = []
    async for answer in asked.turns.over(response.groups):
        # What was asked for by name has been judged; of all that a group has, some may be hidden.
        topics = [*await _shown(asked, answer.topics), *unread.get(answer.group_id, ())]
        shown.append(replaced(answer, topics=topics))
    return joined(response, groups=[*shown, *refused])


async def _shown(asked: Asked, topics: Any) -> list[Any]:
    return [
        topic async for topic in asked.turns.over(topics) if asked.sees_topic(DESCRIBE_TOPIC, topic)
    ]


async def _unread(
    asked: Asked, topics: list[offsets.OffsetFetchRequestTopic], code: ErrorCode
) -> list[offsets.OffsetFetchResponseTopic]:
    return [
        offsets.OffsetFetchResponseTopic(
            **named_as(topic),
            partitions=[
                offsets.OffsetFetchResponsePartition(
                    partition_index=index, committed_offset=-1, metadata="", error_code=code
                )
                async for index in asked.turns.over(topic.partition_indexes)
            ],
        )
        async for topic in asked.turns.over(topics)
    ]


async def delete_offsets(
    asked: Asked, request: offsets.OffsetDeleteRequest, proceed: Proceed
) -> Message:
    if not asked.may(DELETE_GROUP, request.group_id):
        return offsets.OffsetDeleteResponse(error_code=_REFUSED, topics=[])
    allowed, refused = await asked.split_topics(READ_TOPIC, request.topics)
    response: Any = await proceed(replaced(request, topics=allowed))
    if response.error_code:
        return response  # type: ignore[no-any-return]
    answers = [
        offsets.OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=[
                offsets.OffsetDeleteResponsePartition(
                    partition_index=each.partition_index, error_code=_REFUSED_TOPIC
                )
                async for each in asked.turns.over(topic.partitions)
            ],
        )
        async for topic in asked.turns.over(refused)
    ]
    return joined(response, topics=[*response.topics, *answers])


# Whole groups -------------------------------------------------------------------------------------


async def describe(
    asked: Asked, request: groups.DescribeGroupsRequest, proceed: Proceed
) -> Message:
    allowed, refused = await asked.split(DESCRIBE_GROUP, request.groups, str)
    response: Any = await proceed(replaced(request, groups=allowed))
    found = list(response.groups)
    if request.include_authorized_operations:
        found = [
            replaced(group, authorized_operations=asked.operations(DESCRIBE_GROUP, group.group_id))
            async for group in asked.turns.over(found)
        ]
    answers = [
        groups.DescribedGroup(
            error_code=_REFUSED,
            group_id=name,
            group_state="",
            protocol_type="",
            protocol_data="",
            members=[],
        )
        for name in dict.fromkeys(refused)
    ]
    return joined(response, groups=[*found, *answers])


async def list_groups(asked: Asked, request: groups.ListGroupsRequest, proceed: Proceed) -> Message:
    response: Any = await proceed(request)
    if asked.sees(DESCRIBE_CLUSTER):
        return response  # type: ignore[no-any-return]
    shown = [
        group
        async for group in asked.turns.over(response.groups)
        if asked.sees(DESCRIBE_GROUP, group.group_id)
    ]
    return joined(response, groups=shown)


async def delete(asked: Asked, request: groups.DeleteGroupsRequest, proceed: Proceed) -> Message:
    allowed, refused = await asked.split(DELETE_GROUP, request.groups_names, str)
    response: Any = await proceed(replaced(request, groups_names=allowed))
    answers = [
        groups.DeletableGroupResult(group_id=name, error_code=_REFUSED)
        for name in dict.fromkeys(refused)
    ]
    return joined(response, results=[*response.results, *answers])


async def find_coordinator(
    asked: Asked, request: metadata.FindCoordinatorRequest, proceed: Proceed
) -> Message:
    need = _KEYS.get(request.key_type)
    if need is None:
        return await proceed(request)  # It is refused as one that is not known.
    code, text = CODES[need.kind], TEXTS[need.kind]
    if asked.version < _KEYS_SINCE:
        if asked.may(need, request.key):
            return await proceed(request)
        return metadata.FindCoordinatorResponse(error_code=code, error_message=text)
    allowed, refused = await asked.split(need, request.coordinator_keys, str)
    response: Any = await proceed(replaced(request, coordinator_keys=allowed))
    answers = [
        metadata.Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=code, error_message=text
        )
        for key in dict.fromkeys(refused)
    ]
    return joined(response, coordinators=[*response.coordinators, *answers])
