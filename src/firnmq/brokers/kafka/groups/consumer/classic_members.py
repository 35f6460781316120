"""Classic members of a group that the coordinator assigns: clients move from one to the other.

Such a member sends JoinGroup, SyncGroup and Heartbeat as in a classic group, is never the leader,
and gets its assignment from the coordinator. Its generation is its epoch. It says what it still has
when it joins, so it is told to join again whenever there is something for it to give up or to get.
"""

from __future__ import annotations

from firnmq.brokers.kafka.groups.consumer.core import ConsumerCore
from firnmq.brokers.kafka.groups.consumer.embedded import (
    Subscription,
    read_subscription,
    write_assignment,
)
from firnmq.brokers.kafka.groups.consumer.members import ClassicSide, ConsumerMember
from firnmq.brokers.kafka.groups.consumer.messages import Partitions
from firnmq.brokers.kafka.groups.consumer.reconciling import reconcile, rejoin
from firnmq.brokers.kafka.groups.consumer.state import MemberState
from firnmq.brokers.kafka.groups.messages import (
    CodeReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    Leaver,
    LeaveReply,
    LeaveRequest,
    LeaverReply,
    SyncReply,
    SyncRequest,
    Token,
)
from firnmq.brokers.kafka.groups.roster import rebalance_timeout_of, size_of
from firnmq.brokers.kafka.groups.state import GroupState
from firnmq.brokers.kafka.groups.subscription import CONSUMER_PROTOCOL_TYPE
from firnmq.brokers.kafka.protocol.errors import ErrorCode

# JoinGroup ----------------------------------------------------------------------------------------


def handle_join(core: ConsumerCore, token: Token, request: JoinRequest, now_ms: int) -> None:
    subscription = None
    if request.protocols:
        subscription = read_subscription(request.protocols[0].metadata)
    error = _refusal(core, request)
    member = None
    if error is ErrorCode.NONE and subscription is None:
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if error is ErrorCode.NONE:
        member, error = _find(core, request)
    if error is ErrorCode.NONE and member is None:
        if len(core.members) >= core.config.member_count_max:
            error = ErrorCode.GROUP_MAX_SIZE_REACHED
        elif request.requires_known_member_id and not (request.member_id or request.instance_id):
            member_id = core.new_id(request.client_id)
            core.reply_now(
                token, JoinReply(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
            )
            return
    if error is not ErrorCode.NONE:
        core.reply_now(token, JoinReply(error=error, member_id=request.member_id))
        return
    assert subscription is not None
    _admit(core, token, request, member, subscription, now_ms)


def _refusal(core: ConsumerCore, request: JoinRequest) -> ErrorCode:
    """What is wrong with the request itself, independent of its sender."""
    config = core.config
    if core.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    timeout_ms = request.session_timeout_ms
    if not config.session_timeout_min_ms <= timeout_ms <= config.session_timeout_max_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    size = size_of(request)
    if size > config.member_bytes_max:
        return ErrorCode.INVALID_REQUEST
    if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not request.protocols:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    # If all others leave, the classic members have to agree on a protocol.
    shared = {protocol.name for protocol in request.protocols}
    for member in core.members.by_id.values():
        if member.classic is not None and member.member_id != request.member_id:
            shared &= {protocol.name for protocol in member.classic.protocols}
    if not shared:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    known = core.members.by_id.get(request.member_id)
    more = size - (0 if known is None else known.counted_bytes)
    if more > 0 and not core.shares.has_room(request.owner, more):
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    return ErrorCode.NONE


def _find(core: ConsumerCore, request: JoinRequest) -> tuple[ConsumerMember | None, ErrorCode]:
    """The member that joins again; None for a new one."""
    if request.instance_id is None:
        return core.members.by_id.get(request.member_id), ErrorCode.NONE
    holder = core.members.static.get(request.instance_id)
    if holder is None:
        unknown = ErrorCode.UNKNOWN_MEMBER_ID if request.member_id else ErrorCode.NONE
        return None, unknown
    if request.member_id not in ("", holder):
        return None, ErrorCode.FENCED_INSTANCE_ID
    return core.members.by_id[holder], ErrorCode.NONE


def _admit(
    core: ConsumerCore,
    token: Token,
    request: JoinRequest,
    member: ConsumerMember | None,
    subscription: Subscription,
    now_ms: int,
) -> None:
    is_new = member is None
    if member is None:
        member_id = request.member_id or core.new_id(request.instance_id or request.client_id)
        member = ConsumerMember(member_id=member_id, instance_id=request.instance_id)
    elif not request.member_id:
        # A static member has started again, most likely as a new process.
        assert request.instance_id is not None
        core.rename(member, core.new_id(request.instance_id))
        rejoin(core, member)
    elif member.state is MemberState.AWAY:
        rejoin(core, member)
    before = (member.topics, member.classic is None)
    is_changed = _take_over(member, request, subscription)
    if is_new:
        core.members.add(member)
    if is_changed or member.owner != request.owner:
        core.members.recount(member, request.owner)
        core.changed()
    member.join_deadline_ms = None
    core.touch(member, now_ms)
    is_other = is_new or before != (member.topics, False)
    if is_other or core.topics_revision != core.topics.revision:
        core.look_at_topics(now_ms, is_bumped=is_other)
    reconcile(core, member, _owned(core, subscription), now_ms)
    member.sync_deadline_ms = core.deadline(member, now_ms)
    core.reply(
        token,
        JoinReply(
            error=ErrorCode.NONE,
            member_id=member.member_id,
            generation=member.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0].name,
        ),
    )


def _take_over(member: ConsumerMember, request: JoinRequest, subscription: Subscription) -> bool:
    def said() -> tuple[object, ...]:
        return (
            *(member.client_id, member.client_host, member.rack_id, member.topic_names),
            *(member.pattern, member.rebalance_timeout_ms, member.classic),
        )

    before = said()
    member.client_id, member.client_host = request.client_id, request.client_host
    member.rack_id = subscription.rack_id
    member.rebalance_timeout_ms = rebalance_timeout_of(request)
    member.topic_names = subscription.topics
    member.pattern, member.matched, member.assignor = "", frozenset(), None
    member.classic = ClassicSide(
        session_timeout_ms=request.session_timeout_ms,
        protocols=request.protocols,
        version=subscription.version,
    )
    return said() != before


def _owned(core: ConsumerCore, subscription: Subscription) -> Partitions:
    found = ((core.topics.find(topic), index) for topic, index in subscription.owned)
    return frozenset((size.topic_id, index) for size, index in found if size is not None)


# SyncGroup and Heartbeat --------------------------------------------------------------------------


def handle_sync(core: ConsumerCore, token: Token, request: SyncRequest, now_ms: int) -> None:
    error = _member_error(core, request.member_id, request.instance_id, request.generation)
    if error is not ErrorCode.NONE:
        core.reply_now(token, SyncReply(error=error))
        return
    member = core.members.by_id[request.member_id]
    classic = member.classic
    assert classic is not None
    core.touch(member, now_ms)
    names = {protocol.name for protocol in classic.protocols}
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or (
        request.protocol_name is not None and request.protocol_name not in names
    ):
        core.reply_now(token, SyncReply(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        return
    if member.epoch < core.target_epoch and member.state is not MemberState.REVOKING:
        member.sync_deadline_ms = None
        _expect_join(core, member, now_ms)
        core.reply_now(token, SyncReply(error=ErrorCode.REBALANCE_IN_PROGRESS))
        return
    member.sync_deadline_ms = None
    core.reply(
        token,
        SyncReply(
            error=ErrorCode.NONE,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocol_name or classic.protocols[0].name,
            assignment=assignment_of(core, member.assigned, classic.version),
        ),
    )


def assignment_of(core: ConsumerCore, assigned: Partitions, version: int = 0) -> bytes:
    """Partitions as classic clients read them."""
    places: dict[str, list[int]] = {}
    for topic_id, index in sorted(assigned):
        name = core.topics.name_of(topic_id)
        if name is not None:
            places.setdefault(name, []).append(index)
    return write_assignment(places, version)


def handle_classic_heartbeat(
    core: ConsumerCore, token: Token, request: HeartbeatRequest, now_ms: int
) -> None:
    error = _member_error(core, request.member_id, request.instance_id, request.generation)
    if error is ErrorCode.NONE:
        member = core.members.by_id[request.member_id]
        core.touch(member, now_ms)
        if core.topics_revision != core.topics.revision:
            core.look_at_topics(now_ms)
        if _has_to_join(core, member):
            _expect_join(core, member, now_ms)
            error = ErrorCode.REBALANCE_IN_PROGRESS
    core.reply_now(token, CodeReply(error=error))


def _has_to_join(core: ConsumerCore, member: ConsumerMember) -> bool:
    if member.epoch < core.target_epoch or member.state is MemberState.REVOKING:
        return True
    if member.state is not MemberState.WAITING:
        return False
    # To join for each partition that gets free would stop an eager consumer each time.
    return all(
        core.members.holder(each) in (None, member.member_id)
        for each in member.target - member.assigned
    )


def _expect_join(core: ConsumerCore, member: ConsumerMember, now_ms: int) -> None:
    if member.join_deadline_ms is None:
        member.join_deadline_ms = core.deadline(member, now_ms)


def _member_error(
    core: ConsumerCore, member_id: str, instance_id: str | None, generation: int
) -> ErrorCode:
    if core.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if instance_id is not None:
        holder = core.members.static.get(instance_id)
        if holder is not None and holder != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
        if holder is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
    member = core.members.by_id.get(member_id)
    if member is None or member.classic is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if generation == member.epoch else ErrorCode.ILLEGAL_GENERATION


# LeaveGroup ---------------------------------------------------------------------------------------


def handle_leave(core: ConsumerCore, token: Token, request: LeaveRequest, now_ms: int) -> None:
    """Takes out all that are named, of either protocol: operators remove members this way too."""
    if core.state is GroupState.DEAD:
        core.reply_now(token, LeaveReply(error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    leaving: dict[str, ConsumerMember] = {}
    replies = tuple(_leave(core, leaver, leaving) for leaver in request.members)
    core.reply_now(token, LeaveReply(error=ErrorCode.NONE, members=replies))
    core.remove(leaving.values(), now_ms)


def _leave(core: ConsumerCore, leaver: Leaver, leaving: dict[str, ConsumerMember]) -> LeaverReply:
    member_id, error = leaver.member_id, ErrorCode.NONE
    if leaver.instance_id is not None:
        holder = core.members.static.get(leaver.instance_id)
        if holder is None:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        elif member_id not in ("", holder):
            error = ErrorCode.FENCED_INSTANCE_ID
        else:
            member_id = holder
    if error is ErrorCode.NONE and (member_id in leaving or member_id not in core.members.by_id):
        error = ErrorCode.UNKNOWN_MEMBER_ID
    if error is ErrorCode.NONE:
        leaving[member_id] = core.members.by_id[member_id]
    return LeaverReply(member_id=leaver.member_id, instance_id=leaver.instance_id, error=error)
