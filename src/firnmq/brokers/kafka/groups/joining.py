"""JoinGroup: which members are let in, which have to wait, and which cause a rebalance."""

from __future__ import annotations

from firnmq.brokers.kafka.groups.core import GroupCore
from firnmq.brokers.kafka.groups.messages import JoinRequest, Token
from firnmq.brokers.kafka.groups.roster import Member, is_unchanged, new_member, size_of
from firnmq.brokers.kafka.groups.state import GroupState
from firnmq.brokers.kafka.groups.subscription import is_same_interest
from firnmq.brokers.kafka.groups.writes import EraseWrite, RenameWrite
from firnmq.brokers.kafka.protocol.errors import ErrorCode

PROTOCOL_TYPE_CHARS_MAX = 255
"""A group keeps its protocol type after its last member has left. Kafka's own are "consumer" and
"connect"."""


def handle_join(core: GroupCore, token: Token, request: JoinRequest, now_ms: int) -> None:
    """Answers a join, or parks it until the rebalance it belongs to ends."""
    roster = core.roster
    error = _refusal(core, request)
    if error is not ErrorCode.NONE:
        core.refuse_join(token, request.member_id, error)
    elif request.member_id in roster.promised and request.instance_id is None:
        _admit(core, token, request, request.member_id, now_ms)
    elif request.member_id:
        error = roster.identify(request.member_id, request.instance_id)
        if error is not ErrorCode.NONE:
            core.refuse_join(token, request.member_id, error)
        else:
            _rejoin(core, token, request, roster.members[request.member_id], now_ms)
    elif (former_id := roster.static_id(request.instance_id)) is not None:
        _restart_static(core, token, request, former_id, now_ms)
    elif len(roster) + len(roster.promised) >= core.config.member_count_max:
        core.refuse_join(token, "", ErrorCode.GROUP_MAX_SIZE_REACHED)
    elif request.requires_known_member_id and request.instance_id is None:
        _promise(core, token, request, now_ms)
    else:
        member_id = core.new_id(request.instance_id or request.client_id)
        _admit(core, token, request, member_id, now_ms)


def _refusal(core: GroupCore, request: JoinRequest) -> ErrorCode:
    """What is wrong with the request itself, independent of its sender."""
    config = core.config
    timeout_ms = request.session_timeout_ms
    if core.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if not config.session_timeout_min_ms <= timeout_ms <= config.session_timeout_max_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    size = size_of(request)
    if size > config.member_bytes_max or len(request.protocol_type) > PROTOCOL_TYPE_CHARS_MAX:
        return ErrorCode.INVALID_REQUEST
    if not request.protocol_type or not request.protocols:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    # What the sender said before does not count against it: a member alone in its group may
    # turn to another protocol.
    roster = core.roster
    sender = request.member_id or roster.static_id(request.instance_id)
    more = size - roster.counted_bytes(sender)
    if more > 0 and not core.shares.has_room(request.owner, more):
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if roster.has_others(sender) and request.protocol_type != core.protocol_type:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if not roster.suits_others(request.protocols, sender=sender):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _promise(core: GroupCore, token: Token, request: JoinRequest, now_ms: int) -> None:
    """Gives a new member an id to come back with.

    A client that gives up and asks again does so under the id it knows, and does not leave a
    member behind for which no client acts.
    """
    member_id = core.new_id(request.client_id)
    deadline_ms = now_ms + min(request.session_timeout_ms, core.config.promise_ms)
    core.roster.promise(member_id, request.owner, deadline_ms)
    if isinstance(core.write, EraseWrite):
        core.cancel_write()
    core.wake_by(deadline_ms)
    core.refuse_join(token, member_id, ErrorCode.MEMBER_ID_REQUIRED)


def _admit(
    core: GroupCore, token: Token, request: JoinRequest, member_id: str, now_ms: int
) -> None:
    member = new_member(member_id, request)
    core.roster.add(member)
    core.protocol_type = request.protocol_type
    core.touch(member, now_ms)
    if core.state is not GroupState.PREPARING:
        core.prepare(now_ms)
    else:
        core.note_newcomer()
    core.park_join(member, token)
    core.try_complete(now_ms)


def _rejoin(
    core: GroupCore, token: Token, request: JoinRequest, member: Member, now_ms: int
) -> None:
    unchanged = is_unchanged(member, request.protocols)
    is_leader = core.roster.leader == member.member_id
    core.roster.update(member, request)
    core.protocol_type = request.protocol_type
    core.touch(member, now_ms)
    # The leader joins again when it has noticed something that calls for new assignments. In
    # Completing it may as well be that it has not received our answer.
    needs_rebalance = not unchanged or (is_leader and core.state is GroupState.STABLE)
    if core.state is not GroupState.PREPARING and not needs_rebalance:
        core.answer_join(token, member)
        return
    if core.state is not GroupState.PREPARING:
        core.prepare(now_ms)
    core.park_join(member, token)
    core.try_complete(now_ms)


def _restart_static(
    core: GroupCore, token: Token, request: JoinRequest, former_id: str, now_ms: int
) -> None:
    """A static member is back under a new id, most likely after a restart."""
    member = core.roster.members[former_id]
    if core.state is GroupState.STABLE and _keeps_assignment(core, member, request):
        if core.write is None:
            core.persist_rename(token, request, former_id)
        else:
            _defer(core, token, request)
        return
    assert request.instance_id is not None
    member = core.rename(former_id, core.new_id(request.instance_id), request, now_ms)
    core.protocol_type = request.protocol_type
    # In Completing the leader may be at work on a list with the former id, so that the new one
    # would be left without an assignment.
    if core.state is not GroupState.PREPARING:
        core.prepare(now_ms)
    core.park_join(member, token)
    core.try_complete(now_ms)


def _keeps_assignment(core: GroupCore, member: Member, request: JoinRequest) -> bool:
    """Whether the member's assignment still serves it after the restart."""
    name = core.protocol_name
    after = next((p.metadata for p in request.protocols if p.name == name), None)
    if after is None or request.protocol_type != core.protocol_type:
        return False
    return is_same_interest(core.protocol_type, member.metadata(name), after)


def _defer(core: GroupCore, token: Token, request: JoinRequest) -> None:
    for index, (other_token, other) in enumerate(core.deferred):
        if other.instance_id == request.instance_id:
            core.refuse_join(other_token, other.member_id, ErrorCode.FENCED_INSTANCE_ID)
            del core.deferred[index]
            break
    core.deferred.append((token, request))


def finish_rename(core: GroupCore, write: RenameWrite, now_ms: int) -> None:
    """The new id is saved: from now on the former one is fenced."""
    leader_before = core.roster.leader
    member = core.rename(write.member_id, write.new_id, write.request, now_ms)
    # A restarted leader is told the id it had, so that it does not take itself for the leader:
    # a Stable group would not look at the assignments it would then compute.
    if write.token is not None:
        core.answer_join(write.token, member, leader=leader_before)


def resume_deferred(core: GroupCore, now_ms: int) -> None:
    """Takes up joins that were put off, until one of them waits for the store again."""
    while core.deferred and core.write is None:
        token, request = core.deferred.pop(0)
        handle_join(core, token, request, now_ms)
