"""ConsumerGroupHeartbeat: members join, say what is new, learn what they may read, leave."""

from __future__ import annotations

from dataclasses import dataclass, replace

from firnmq.brokers.kafka.groups.consumer.assignors import ASSIGNORS
from firnmq.brokers.kafka.groups.consumer.core import ConsumerCore
from firnmq.brokers.kafka.groups.consumer.members import PARTITION_BYTES, ConsumerMember
from firnmq.brokers.kafka.groups.consumer.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    PAUSE_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    InvalidPattern,
    Topics,
)
from firnmq.brokers.kafka.groups.consumer.reconciling import pause, reconcile, rejoin
from firnmq.brokers.kafka.groups.consumer.state import MemberState
from firnmq.brokers.kafka.groups.messages import Token
from firnmq.brokers.kafka.groups.state import GroupState
from firnmq.brokers.kafka.protocol.errors import ErrorCode

PATTERN_CHARS_MAX = 1_024
MEMBER_ID_CHARS_MAX = 1_024
REBALANCE_TIMEOUT_MS_MAX = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class _Refusal(Exception):
    error: ErrorCode
    message: str


def handle_heartbeat(
    core: ConsumerCore, token: Token, request: ConsumerHeartbeat, now_ms: int
) -> None:
    try:
        if core.state is GroupState.DEAD:
            raise _Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group is closed")
        _check(request)
        if request.epoch in (LEAVE_EPOCH, PAUSE_EPOCH):
            _leave(core, token, request, now_ms)
        else:
            _stay(core, token, request, now_ms)
    except _Refusal as refusal:
        core.refuse(token, refusal.error, refusal.message)


def _check(request: ConsumerHeartbeat) -> None:
    """What is wrong with the request itself, independent of its sender."""
    if not request.member_id or len(request.member_id) > MEMBER_ID_CHARS_MAX:
        raise _Refusal(
            ErrorCode.INVALID_REQUEST, f"MemberId must have 1 to {MEMBER_ID_CHARS_MAX} characters."
        )
    if request.instance_id == "" or request.rack_id == "":
        raise _Refusal(ErrorCode.INVALID_REQUEST, "InstanceId and RackId can't be empty.")
    if request.epoch < PAUSE_EPOCH:
        raise _Refusal(ErrorCode.INVALID_REQUEST, f"MemberEpoch {request.epoch} is invalid.")
    if request.epoch == PAUSE_EPOCH and request.instance_id is None:
        raise _Refusal(ErrorCode.INVALID_REQUEST, "InstanceId can't be null.")
    if request.epoch == JOIN_EPOCH:
        if request.rebalance_timeout_ms is None:
            raise _Refusal(
                ErrorCode.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request."
            )
        if request.owned is None or request.owned:
            raise _Refusal(
                ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining."
            )
        if request.topic_names is None and request.pattern is None:
            raise _Refusal(
                ErrorCode.INVALID_REQUEST,
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when"
                " (re-)joining.",
            )
    if len(request.pattern or "") > PATTERN_CHARS_MAX:
        raise _Refusal(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex has more than {PATTERN_CHARS_MAX} characters.",
        )
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        raise _Refusal(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.assignor} is not supported; there are {', '.join(ASSIGNORS)}",
        )


def refusal_of(request: ConsumerHeartbeat, topics: Topics) -> ConsumerHeartbeatReply | None:
    """What is wrong with a request to join, before there is a group for it."""
    try:
        _check(request)
        if request.pattern:
            _found(request, topics, request.pattern)
    except _Refusal as refusal:
        return ConsumerHeartbeatReply(error=refusal.error, message=refusal.message)
    return None


# To leave -----------------------------------------------------------------------------------------


def _leave(core: ConsumerCore, token: Token, request: ConsumerHeartbeat, now_ms: int) -> None:
    member = _known(core, request)
    if request.epoch == PAUSE_EPOCH:
        pause(core, member)
        core.touch(member, now_ms)
    else:
        core.remove([member], now_ms)
    core.reply(
        token,
        ConsumerHeartbeatReply(
            error=ErrorCode.NONE, member_id=request.member_id, epoch=request.epoch
        ),
    )


def _known(core: ConsumerCore, request: ConsumerHeartbeat) -> ConsumerMember:
    """The member that sends the request."""
    if request.instance_id is None:
        member = core.members.by_id.get(request.member_id)
        if member is None:
            raise _Refusal(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {request.member_id} is not a member of group {core.group_id}.",
            )
        return member
    holder = core.members.static.get(request.instance_id)
    if holder is None:
        raise _Refusal(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {request.instance_id} is unknown."
        )
    if holder != request.member_id:
        raise _Refusal(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {request.member_id} with instance id {request.instance_id} was fenced"
            f" by member {holder}.",
        )
    return core.members.by_id[holder]


# To join and to stay ------------------------------------------------------------------------------


def _stay(core: ConsumerCore, token: Token, request: ConsumerHeartbeat, now_ms: int) -> None:
    if request.epoch == JOIN_EPOCH:
        # Who joins tells everything, so what is missing is not as it was but not there.
        names, pattern = request.topic_names or frozenset(), request.pattern or ""
        request = replace(request, topic_names=names, pattern=pattern)
    # The expression is compiled before anything changes.
    matched = _matched(core, request)
    _check_room(core, request, matched)
    member = _joining(core, request) if request.epoch == JOIN_EPOCH else _staying(core, request)
    before = (member.topics, member.assignor, member.classic is None)
    is_new = member.member_id not in core.members.by_id
    is_changed = _take_over(member, request, matched, core.topics.revision)
    if is_new:
        core.members.add(member)
    if is_changed or member.owner != request.owner:
        core.members.recount(member, request.owner)
        core.changed()
    core.touch(member, now_ms)
    is_other = is_new or before != (member.topics, member.assignor, True)
    if is_other or core.topics_revision != core.topics.revision:
        core.look_at_topics(now_ms, is_bumped=is_other)
    had = member.assigned
    reconcile(core, member, request.owned, now_ms)
    is_told = request.is_full or request.epoch == JOIN_EPOCH
    is_told = is_told or (had is not member.assigned and had != member.assigned)
    core.reply(
        token,
        ConsumerHeartbeatReply(
            error=ErrorCode.NONE,
            member_id=member.member_id,
            epoch=member.epoch,
            heartbeat_interval_ms=core.config.consumer_heartbeat_interval_ms,
            assignment=member.assigned if is_told else None,
        ),
    )


def _joining(core: ConsumerCore, request: ConsumerHeartbeat) -> ConsumerMember:
    """A new member, or one that has started again."""
    known = core.members.by_id.get(request.member_id)
    if request.instance_id is not None:
        holder = core.members.static.get(request.instance_id)
        if holder is not None and holder != request.member_id:
            member = core.members.by_id[holder]
            if member.state is not MemberState.AWAY:
                raise _Refusal(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"Static member {request.member_id} with instance id {request.instance_id}"
                    f" cannot join the group because the instance id is owned by {holder}.",
                )
            if known is not None:
                raise _Refusal(
                    ErrorCode.INVALID_REQUEST, f"MemberId {request.member_id} is in use."
                )
            core.rename(member, request.member_id)
            rejoin(core, member)
            return member
    if known is not None:
        if known.instance_id != request.instance_id:
            raise _Refusal(ErrorCode.INVALID_REQUEST, "InstanceId can't be changed.")
        rejoin(core, known)
        return known
    if len(core.members) >= core.config.member_count_max:
        raise _Refusal(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The group has {core.config.member_count_max} members, which is its limit.",
        )
    return ConsumerMember(member_id=request.member_id, instance_id=request.instance_id)


def _staying(core: ConsumerCore, request: ConsumerHeartbeat) -> ConsumerMember:
    member = _known(core, request)
    if member.state is MemberState.AWAY or member.classic is not None:
        raise _Refusal(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Member {request.member_id} has to join again."
        )
    has_previous = request.epoch == member.previous_epoch
    owned = request.owned
    if request.epoch > member.epoch or (
        # The answer with the present epoch may have been lost: then it has no more than it knew.
        request.epoch < member.epoch
        and not (has_previous and owned is not None and owned <= member.holds)
    ):
        raise _Refusal(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The member epoch is {member.epoch}, not {request.epoch}. The member must abandon"
            " all its partitions and rejoin.",
        )
    return member


def _matched(core: ConsumerCore, request: ConsumerHeartbeat) -> frozenset[str] | None:
    """What the pattern finds; None if that need not be looked at again."""
    pattern = request.pattern
    if pattern is None:
        member = core.members.by_id.get(request.member_id)
        if member is None or member.matched_revision == core.topics.revision:
            return None
        pattern = member.pattern
    return _found(request, core.topics, pattern) if pattern else frozenset()


def _found(request: ConsumerHeartbeat, topics: Topics, pattern: str) -> frozenset[str]:
    try:
        return frozenset(filter(request.sees, topics.matching(pattern)))
    except InvalidPattern as error:
        raise _Refusal(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex {pattern!r} is not a valid regular expression: {error}.",
        ) from None


def _check_room(
    core: ConsumerCore, request: ConsumerHeartbeat, matched: frozenset[str] | None
) -> None:
    """Refuses what would take more memory than a member or a client may have."""
    if request.topic_names is None and matched is None:
        return
    former = core.members.static.get(request.instance_id or "", request.member_id)
    member = core.members.by_id.get(former) or ConsumerMember(member_id=request.member_id)
    names = member.topic_names if request.topic_names is None else request.topic_names
    names |= member.matched if matched is None else matched
    size = ConsumerMember(
        member_id=request.member_id,
        client_id=request.client_id,
        rack_id=request.rack_id or member.rack_id,
        instance_id=request.instance_id or member.instance_id,
        topic_names=names,
        pattern=member.pattern if request.pattern is None else request.pattern,
        assignor=request.assignor or member.assignor,
        target=member.target,
    ).size()
    if size > core.config.member_bytes_max:
        raise _Refusal(ErrorCode.INVALID_REQUEST, "The subscription is too large.")
    found = (core.topics.find(name) for name in names - core.sizes.keys())
    more = sum(PARTITION_BYTES * each.partition_count for each in found if each is not None)
    more += size - member.counted_bytes
    if more > 0 and not core.shares.has_room(request.owner, more):
        raise _Refusal(
            ErrorCode.GROUP_MAX_SIZE_REACHED, "The client's groups take as much as they may."
        )


def _take_over(
    member: ConsumerMember,
    request: ConsumerHeartbeat,
    matched: frozenset[str] | None,
    revision: int,
) -> bool:
    """Takes over what the member says about itself; whether that is something new."""
    before = _said(member)
    member.client_id, member.client_host = request.client_id, request.client_host
    if request.rack_id is not None:
        member.rack_id = request.rack_id
    if request.rebalance_timeout_ms is not None:
        timeout_ms = min(max(request.rebalance_timeout_ms, 0), REBALANCE_TIMEOUT_MS_MAX)
        member.rebalance_timeout_ms = timeout_ms
    if request.assignor is not None:
        member.assignor = request.assignor
    if request.topic_names is not None:
        member.topic_names = request.topic_names
    if request.pattern is not None:
        member.pattern = request.pattern
    if matched is not None:
        member.matched = matched
        member.matched_revision = revision
    if request.epoch == JOIN_EPOCH:
        member.classic = None
        member.join_deadline_ms = member.sync_deadline_ms = None
    return _said(member) != before


def _said(member: ConsumerMember) -> tuple[object, ...]:
    return (
        *(member.client_id, member.client_host, member.rack_id, member.rebalance_timeout_ms),
        *(member.assignor, member.topic_names, member.pattern, member.matched),
        member.classic is None,
    )
