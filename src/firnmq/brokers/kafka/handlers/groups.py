"""The group calls: between protocol messages and the coordinator."""

from __future__ import annotations

from dataclasses import replace

from firnmq.brokers.kafka.failures import group_code_of
from firnmq.brokers.kafka.groups import (
    GroupCoordinator,
    GroupProtocol,
    GroupState,
    GroupType,
    JoinRequest,
    Leaver,
    LeaveRequest,
    SyncRequest,
)
from firnmq.brokers.kafka.groups import HeartbeatRequest as Heartbeat
from firnmq.brokers.kafka.offsets import GroupOffsets
from firnmq.brokers.kafka.operations import GROUP_OPERATIONS
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from firnmq.brokers.kafka.protocol.messages.metadata import OPERATIONS_NOT_REQUESTED
from firnmq.brokers.net.loop_turns import Turns
from firnmq.errors import FirnError

_KNOWN_MEMBER_ID_SINCE = 4
_ABSENCE_TOLD_SINCE = 6
"""Version of DescribeGroups from which on a group that there is not is an error."""


class GroupHandler:
    def __init__(self, coordinator: GroupCoordinator, offsets: GroupOffsets, turns: Turns) -> None:
        self._turns = turns
        self._coordinator = coordinator
        self._offsets = offsets

    async def join(
        self,
        request: JoinGroupRequest,
        version: int,
        client_id: str,
        client_host: str,
        owner: str,
    ) -> JoinGroupResponse:
        reply = await self._coordinator.join(
            request.group_id,
            JoinRequest(
                protocol_type=request.protocol_type,
                protocols=tuple(
                    GroupProtocol(name=each.name, metadata=bytes(each.metadata))
                    for each in request.protocols
                ),
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                client_id=client_id,
                client_host=client_host,
                owner=owner,
                requires_known_member_id=version >= _KNOWN_MEMBER_ID_SINCE,
            ),
        )
        name = reply.protocol_name
        return JoinGroupResponse(
            error_code=reply.error,
            generation_id=reply.generation,
            protocol_type=reply.protocol_type,
            protocol_name=name if name is not None or version >= 7 else "",
            leader=reply.leader,
            member_id=reply.member_id,
            members=[
                JoinGroupResponseMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    metadata=member.metadata,
                )
                for member in reply.members
            ],
        )

    async def sync(self, request: SyncGroupRequest) -> SyncGroupResponse:
        reply = await self._coordinator.sync(
            request.group_id,
            SyncRequest(
                member_id=request.member_id,
                generation=request.generation_id,
                instance_id=request.group_instance_id,
                protocol_type=request.protocol_type,
                protocol_name=request.protocol_name,
                assignments={
                    each.member_id: bytes(each.assignment) for each in request.assignments
                },
            ),
        )
        return SyncGroupResponse(
            error_code=reply.error,
            protocol_type=reply.protocol_type,
            protocol_name=reply.protocol_name,
            assignment=reply.assignment,
        )

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatResponse:
        beat = Heartbeat(
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=request.group_instance_id,
        )
        return HeartbeatResponse(error_code=self._coordinator.heartbeat(request.group_id, beat))

    async def leave(self, request: LeaveGroupRequest, version: int) -> LeaveGroupResponse:
        leaving = request.members if version >= 3 else [MemberIdentity(member_id=request.member_id)]
        reply = self._coordinator.leave(
            request.group_id,
            LeaveRequest(
                members=tuple(
                    Leaver(member_id=each.member_id, instance_id=each.group_instance_id)
                    for each in leaving
                )
            ),
        )
        code = reply.error
        if version < 3 and code is ErrorCode.NONE and reply.members:
            code = reply.members[0].error
        return LeaveGroupResponse(
            error_code=code,
            members=[
                MemberResponse(
                    member_id=each.member_id,
                    group_instance_id=each.instance_id,
                    error_code=each.error,
                )
                for each in reply.members
            ],
        )

    async def describe(
        self, request: DescribeGroupsRequest, version: int
    ) -> DescribeGroupsResponse:
        # Each group is described once, however often it is named.
        names = self._turns.distinct(request.groups)
        operations = OPERATIONS_NOT_REQUESTED
        if request.include_authorized_operations:
            operations = GROUP_OPERATIONS
        groups = [self._describe(name, version, operations) async for name in names]
        return DescribeGroupsResponse(groups=groups)

    async def list(self, request: ListGroupsRequest) -> ListGroupsResponse:
        groups = []
        states = frozenset(request.states_filter)
        types = frozenset(map(str.lower, request.types_filter))
        known = set(self._coordinator.group_ids()) | set(await self._offsets.groups())
        async for name in self._turns.over(sorted(known)):
            found = self._coordinator.describe(name)
            # A group that only keeps offsets exists for its users, though it has no members.
            state = GroupState.EMPTY if found.state is GroupState.DEAD else found.state
            kind = found.group_type.value
            if (not states or state.value in states) and (not types or kind in types):
                groups.append(
                    ListedGroup(
                        group_id=name,
                        protocol_type=found.protocol_type,
                        group_state=state.value,
                        group_type=kind,
                    )
                )
        return ListGroupsResponse(groups=groups)

    async def delete(self, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(
            results=[
                DeletableGroupResult(group_id=name, error_code=await self._delete(name))
                async for name in self._turns.distinct(request.groups_names)
            ]
        )

    async def _delete(self, name: str) -> ErrorCode:
        code = await self._coordinator.delete(name)
        has_offsets = self._offsets.has_offsets(name)
        if code is ErrorCode.GROUP_ID_NOT_FOUND and has_offsets:
            code = ErrorCode.NONE
        if code is ErrorCode.NONE and has_offsets:
            try:
                await self._offsets.forget(name)
            except FirnError as error:
                return group_code_of(error)
        return code

    def _describe(self, name: str, version: int, operations: int) -> DescribedGroup:
        found = self._coordinator.describe(name)
        state = found.state
        if state is GroupState.DEAD and self._offsets.has_offsets(name):
            state = GroupState.EMPTY
        code, message = ErrorCode.NONE, None
        if state is GroupState.DEAD:
            message = f"there is no group {name!r}"
        elif found.group_type is GroupType.CONSUMER:
            # Clients that know the other kind then ask for it with ConsumerGroupDescribe.
            state, message = GroupState.DEAD, f"Group {name} is not a classic group."
        if message is not None and version >= _ABSENCE_TOLD_SINCE:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        elif message is not None:
            message = None
        if state is GroupState.DEAD:
            found = replace(found, protocol_type="", protocol_name="", members=())
        return DescribedGroup(
            error_code=code,
            error_message=message,
            authorized_operations=operations,
            group_id=name,
            group_state=state.value,
            protocol_type=found.protocol_type,
            protocol_data=found.protocol_name,
            members=[
                DescribedGroupMember(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata,
                    member_assignment=member.assignment,
                )
                for member in found.members
            ],
        )
