"""The rules of every request but JoinGroup."""

from __future__ import annotations

from firnmq.brokers.kafka.groups.core import GroupCore
from firnmq.brokers.kafka.groups.messages import (
    CodeReply,
    CommitRequest,
    HeartbeatRequest,
    Leaver,
    LeaveReply,
    LeaveRequest,
    LeaverReply,
    SyncReply,
    SyncRequest,
    Token,
)
from firnmq.brokers.kafka.groups.state import GroupState
from firnmq.brokers.kafka.protocol.errors import ErrorCode


def handle_sync(core: GroupCore, token: Token, request: SyncRequest, now_ms: int) -> None:
    """Answers a sync, or parks it until the leader's assignments are saved."""
    error = _sync_error(core, request)
    if error is ErrorCode.REBALANCE_IN_PROGRESS:
        # It is one of us and as alive as if it had sent a heartbeat; it only comes too late.
        core.touch(core.roster.members[request.member_id], now_ms)
    if error is not ErrorCode.NONE:
        core.reply(token, SyncReply(error=error))
        return
    member = core.roster.members[request.member_id]
    core.touch(member, now_ms)
    if core.state is GroupState.STABLE:
        member.sync_deadline_ms = None
        core.answer_sync(token, member)
        return
    core.park_sync(member, token)
    # A leader that asks twice while its first assignments are being saved waits for those.
    if core.roster.leader == member.member_id and core.write is None:
        core.persist_assignments(
            {
                member_id: request.assignments.get(member_id, b"")
                for member_id in core.roster.members
            }
        )


def _sync_error(core: GroupCore, request: SyncRequest) -> ErrorCode:
    error = _member_error(core, request.member_id, request.instance_id, request.generation)
    if error is not ErrorCode.NONE:
        return error
    if request.protocol_type not in (None, core.protocol_type):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if core.state is GroupState.PREPARING:
        return ErrorCode.REBALANCE_IN_PROGRESS
    if request.protocol_name not in (None, core.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    size = sum(map(len, request.assignments.values()))
    if size > core.config.assignment_bytes_max:
        return ErrorCode.INVALID_REQUEST
    if size and not core.shares.has_room(core.roster.members[request.member_id].owner, size):
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    return ErrorCode.NONE


def handle_heartbeat(core: GroupCore, token: Token, request: HeartbeatRequest, now_ms: int) -> None:
    error = _member_error(core, request.member_id, request.instance_id, request.generation)
    if error is ErrorCode.NONE:
        core.touch(core.roster.members[request.member_id], now_ms)
        if core.state is GroupState.PREPARING:
            error = ErrorCode.REBALANCE_IN_PROGRESS
    core.reply(token, CodeReply(error=error))


def handle_commit(core: GroupCore, token: Token, request: CommitRequest, now_ms: int) -> None:
    core.reply(token, CodeReply(error=_commit_error(core, request, now_ms)))


def _commit_error(core: GroupCore, request: CommitRequest, now_ms: int) -> ErrorCode:
    if core.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if request.generation < 0 and core.state is GroupState.EMPTY:
        return ErrorCode.NONE  # A client that assigns partitions by hand and only keeps offsets.
    is_anonymous = request.generation < 0 and not request.member_id and request.instance_id is None
    if is_anonymous:
        # Transactional commits were not fenced by group before TxnOffsetCommit v3.
        is_fine = request.is_transactional
        return ErrorCode.NONE if is_fine else ErrorCode.UNKNOWN_MEMBER_ID
    error = _member_error(core, request.member_id, request.instance_id, request.generation)
    if error is not ErrorCode.NONE:
        return error
    core.touch(core.roster.members[request.member_id], now_ms)
    # In Preparing the partitions are still the member's own, so it may note how far it came. In
    # Completing it has given them up.
    if core.state is GroupState.COMPLETING and not request.is_transactional:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def handle_leave(core: GroupCore, token: Token, request: LeaveRequest, now_ms: int) -> None:
    """Takes out all that are named, then rebalances once."""
    if core.state is GroupState.DEAD:
        core.reply(token, LeaveReply(error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    leaving: dict[str, None] = {}
    replies = tuple(_leave(core, leaver, leaving) for leaver in request.members)
    core.reply(token, LeaveReply(error=ErrorCode.NONE, members=replies))
    core.remove(list(leaving), now_ms)
    core.try_complete(now_ms)


def _leave(core: GroupCore, leaver: Leaver, leaving: dict[str, None]) -> LeaverReply:
    roster = core.roster
    member_id = leaver.member_id
    error = ErrorCode.NONE
    if not member_id and leaver.instance_id is not None:
        # An operator removes a static member, and knows it by its instance id only.
        member_id = roster.static_id(leaver.instance_id) or ""
    if leaver.instance_id is None and member_id in roster.promised:
        roster.end_promise(member_id)
    elif member_id in leaving:
        error = ErrorCode.UNKNOWN_MEMBER_ID
    else:
        error = roster.identify(member_id, leaver.instance_id)
        if error is ErrorCode.NONE:
            leaving[member_id] = None
    return LeaverReply(member_id=leaver.member_id, instance_id=leaver.instance_id, error=error)


def handle_delete(core: GroupCore, token: Token) -> None:
    if core.state is GroupState.DEAD:
        core.reply(token, CodeReply(error=ErrorCode.GROUP_ID_NOT_FOUND))
    elif core.state is not GroupState.EMPTY or core.roster.promised:
        # A consumer with a promised id is about to join, and a deleted group would not know it.
        core.reply(token, CodeReply(error=ErrorCode.NON_EMPTY_GROUP))
    elif core.write is not None:
        # A deletion is under way; the client that asked first is told how it ends.
        core.reply(token, CodeReply(error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
    else:
        core.erase(token)


def _member_error(
    core: GroupCore, member_id: str, instance_id: str | None, generation: int
) -> ErrorCode:
    """What is wrong with the sender, and with the generation it believes in."""
    if core.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = core.roster.identify(member_id, instance_id)
    if error is not ErrorCode.NONE:
        return error
    return ErrorCode.NONE if generation == core.generation else ErrorCode.ILLEGAL_GENERATION
