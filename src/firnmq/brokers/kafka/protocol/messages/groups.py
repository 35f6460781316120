"""The group calls: join, sync, heartbeat, leave, and looking at and deleting groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from firnmq.brokers.kafka.protocol.messages.metadata import OPERATIONS_NOT_REQUESTED
from firnmq.brokers.kafka.protocol.schema import (
    Bool,
    Bytes,
    Int16,
    Int32,
    Message,
    String,
    null_since,
    since,
    until,
)

# JoinGroup.


class JoinGroupRequestProtocol(Message):
    name: String
    metadata: Bytes


class JoinGroupRequest(Message):
    group_id: String
    session_timeout_ms: Int32
    rebalance_timeout_ms: Annotated[Int32, since(1)] = -1
    member_id: String
    group_instance_id: Annotated[String | None, since(5)] = None
    protocol_type: String
    protocols: Sequence[JoinGroupRequestProtocol]
    reason: Annotated[String | None, since(8)] = None


class JoinGroupResponseMember(Message):
    member_id: String
    group_instance_id: Annotated[String | None, since(5)] = None
    metadata: Bytes


class JoinGroupResponse(Message):
    throttle_time_ms: Annotated[Int32, since(2)] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, since(7)] = None
    protocol_name: Annotated[String | None, null_since(7)]
    leader: String
    skip_assignment: Annotated[Bool, since(9)] = False
    member_id: String
    members: Sequence[JoinGroupResponseMember]


# SyncGroup.


class SyncGroupRequestAssignment(Message):
    member_id: String
    assignment: Bytes


class SyncGroupRequest(Message):
    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[String | None, since(3)] = None
    protocol_type: Annotated[String | None, since(5)] = None
    protocol_name: Annotated[String | None, since(5)] = None
    assignments: Sequence[SyncGroupRequestAssignment]


class SyncGroupResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[String | None, since(5)] = None
    protocol_name: Annotated[String | None, since(5)] = None
    assignment: Bytes


# Heartbeat.


class HeartbeatRequest(Message):
    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[String | None, since(3)] = None


class HeartbeatResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Int16 = 0


# LeaveGroup: one member up to version 2, several from version 3 on.


class MemberIdentity(Message):
    member_id: String
    group_instance_id: String | None = None
    reason: Annotated[String | None, since(5)] = None


class LeaveGroupRequest(Message):
    group_id: String
    member_id: Annotated[String, until(2)] = ""
    members: Annotated[Sequence[MemberIdentity], since(3)] = ()


class MemberResponse(Message):
    member_id: String
    group_instance_id: String | None = None
    error_code: Int16 = 0


class LeaveGroupResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Int16 = 0
    members: Annotated[Sequence[MemberResponse], since(3)] = ()


# DescribeGroups.


class DescribeGroupsRequest(Message):
    groups: Sequence[String]
    include_authorized_operations: Annotated[Bool, since(3)] = False


class DescribedGroupMember(Message):
    member_id: String
    group_instance_id: Annotated[String | None, since(4)] = None
    client_id: String
    client_host: String
    member_metadata: Bytes
    member_assignment: Bytes


class DescribedGroup(Message):
    error_code: Int16 = 0
    error_message: Annotated[String | None, since(6)] = None
    group_id: String
    group_state: String
    protocol_type: String
    protocol_data: String
    members: Sequence[DescribedGroupMember]
    authorized_operations: Annotated[Int32, since(3)] = OPERATIONS_NOT_REQUESTED


class DescribeGroupsResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    groups: Sequence[DescribedGroup]


# ListGroups.


class ListGroupsRequest(Message):
    states_filter: Annotated[Sequence[String], since(4)] = ()
    types_filter: Annotated[Sequence[String], since(5)] = ()


class ListedGroup(Message):
    group_id: String
    protocol_type: String
    group_state: Annotated[String, since(4)] = ""
    group_type: Annotated[String, since(5)] = ""


class ListGroupsResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Int16 = 0
    groups: Sequence[ListedGroup]


# DeleteGroups.


class DeleteGroupsRequest(Message):
    groups_names: Sequence[String]


class DeletableGroupResult(Message):
    group_id: String
    error_code: Int16 = 0


class DeleteGroupsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: Sequence[DeletableGroupResult]
