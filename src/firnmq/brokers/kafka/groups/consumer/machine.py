"""A consumer group as a state machine: `handle(event, now_ms)` gives actions.

As with a classic group there is no clock, no randomness and no waiting in here. What a client is
told has been saved before, so that a restarted node never takes back a partition or an epoch.
"""

from __future__ import annotations

from typing import assert_never

from firnmq.brokers.kafka.groups.config import GroupConfig
from firnmq.brokers.kafka.groups.consumer.classic_members import (
    assignment_of,
    handle_classic_heartbeat,
    handle_join,
    handle_leave,
    handle_sync,
)
from firnmq.brokers.kafka.groups.consumer.core import ConsumerCore
from firnmq.brokers.kafka.groups.consumer.heartbeats import handle_heartbeat
from firnmq.brokers.kafka.groups.consumer.members import ClassicSide, ConsumerMember
from firnmq.brokers.kafka.groups.consumer.messages import (
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerMemberDescription,
    FetchCheck,
    Topics,
)
from firnmq.brokers.kafka.groups.consumer.snapshot import ConsumerGroupSnapshot, unpack
from firnmq.brokers.kafka.groups.consumer.state import ConsumerStep, MemberState
from firnmq.brokers.kafka.groups.core import MemberIdFactory
from firnmq.brokers.kafka.groups.messages import (
    Abandoned,
    Asked,
    CodeReply,
    CommitRequest,
    DeleteRequest,
    GroupAction,
    GroupDescription,
    GroupEvent,
    GroupRequest,
    GroupType,
    HeartbeatRequest,
    JoinRequest,
    LeaveRequest,
    MemberDescription,
    OffsetRetention,
    SyncRequest,
    Tick,
    Token,
    Unloaded,
    WriteDone,
    WriteFailed,
)
from firnmq.brokers.kafka.groups.shares import GroupShares
from firnmq.brokers.kafka.groups.state import GroupState
from firnmq.brokers.kafka.groups.subscription import CONSUMER_PROTOCOL_TYPE
from firnmq.brokers.kafka.protocol.errors import ErrorCode


class ConsumerGroup:
    """One group whose coordinator assigns the partitions."""

    def __init__(
        self,
        group_id: str,
        *,
        config: GroupConfig,
        new_id: MemberIdFactory,
        topics: Topics,
        shares: GroupShares | None = None,
    ) -> None:
        """`shares` are those of all groups of a node."""
        self.core = ConsumerCore(
            group_id,
            config=config,
            new_id=new_id,
            shares=shares or GroupShares(config),
            topics=topics,
        )

    @classmethod
    def restore(
        cls,
        group_id: str,
        snapshot: ConsumerGroupSnapshot,
        now_ms: int,
        *,
        config: GroupConfig,
        new_id: MemberIdFactory,
        topics: Topics,
        shares: GroupShares | None = None,
    ) -> ConsumerGroup:
        """The group as it was saved; its members have one session time-out to be heard from."""
        group = cls(group_id, config=config, new_id=new_id, topics=topics, shares=shares)
        core = group.core
        core.epoch, core.target_epoch = snapshot.epoch, snapshot.target_epoch
        for saved in snapshot.members:
            classic = saved.classic
            member = ConsumerMember(
                member_id=saved.member_id,
                instance_id=saved.instance_id,
                rack_id=saved.rack_id,
                client_id=saved.client_id,
                client_host=saved.client_host,
                owner=saved.owner,
                rebalance_timeout_ms=saved.rebalance_timeout_ms,
                topic_names=frozenset(saved.topic_names),
                pattern=saved.pattern,
                matched=frozenset(saved.matched),
                assignor=saved.assignor,
                classic=None
                if classic is None
                else ClassicSide(
                    session_timeout_ms=classic.session_timeout_ms,
                    protocols=classic.protocols,
                    version=classic.version,
                ),
                state=saved.state,
                epoch=saved.epoch,
                previous_epoch=saved.previous_epoch,
                assigned=unpack(saved.assigned),
                revoking=unpack(saved.revoking),
                target=unpack(saved.target),
            )
            core.members.add(member)
        core.take_up(now_ms)
        return group

    @property
    def group_id(self) -> str:
        return self.core.group_id

    @property
    def state(self) -> GroupState:
        return self.core.state

    @property
    def generation(self) -> int:
        return self.core.epoch

    @property
    def protocol_type(self) -> str:
        return CONSUMER_PROTOCOL_TYPE

    @property
    def owner(self) -> str:
        """The client that the oldest member counts for; empty without one."""
        return next((each.owner for each in self.core.members.by_id.values()), "")

    @property
    def member_count(self) -> int:
        return len(self.core.members)

    @property
    def wake_ms(self) -> int | None:
        """When the next Tick is due; it does no harm to be early."""
        return self.core.wake_ms

    @property
    def is_idle(self) -> bool:
        """No member is in it, and everything is saved."""
        core = self.core
        return (
            core.state is GroupState.EMPTY
            and core.write is None
            and core.version == core.saved_version
        )

    @property
    def is_blank(self) -> bool:
        """Idle, and never had a member: indistinguishable from a group that is not there."""
        return self.is_idle and self.core.epoch == 0

    @property
    def is_left_to_classic(self) -> bool:
        """There are members, all of them classic, and what they were told is saved."""
        core = self.core
        members = core.members.by_id.values()
        is_quiet = core.write is None and core.version == core.saved_version
        return bool(members) and is_quiet and all(each.classic is not None for each in members)

    def handle(self, event: GroupEvent, now_ms: int) -> list[GroupAction]:
        """Takes in one event; the actions are to be carried out in this order."""
        core = self.core
        core.actions = []
        match event:
            case Asked(token=token, request=request):
                self._ask(token, request, now_ms)
            case Tick():
                core.expire(now_ms)
            case Abandoned(token=token):
                core.abandon(token)
            case WriteDone(seq=seq):
                core.write_done(seq)
            case WriteFailed(seq=seq):
                core.write_failed(seq, now_ms)
            case Unloaded():
                core.become_dead(ConsumerStep.UNLOADED, ErrorCode.NOT_COORDINATOR)
            case _:
                assert_never(event)
        core.save(now_ms)
        actions, core.actions = core.actions, []
        return actions

    def _ask(self, token: Token, request: GroupRequest, now_ms: int) -> None:
        core = self.core
        match request:
            case ConsumerHeartbeat():
                handle_heartbeat(core, token, request, now_ms)
            case HeartbeatRequest():
                handle_classic_heartbeat(core, token, request, now_ms)
            case CommitRequest():
                core.reply_now(token, CodeReply(error=self._commit_error(request, now_ms)))
            case FetchCheck():
                core.reply_now(token, CodeReply(error=self._fetch_error(request)))
            case JoinRequest():
                handle_join(core, token, request, now_ms)
            case SyncRequest():
                handle_sync(core, token, request, now_ms)
            case LeaveRequest():
                handle_leave(core, token, request, now_ms)
            case DeleteRequest():
                self._delete(token)
            case _:
                assert_never(request)

    def _commit_error(self, request: CommitRequest, now_ms: int) -> ErrorCode:
        core = self.core
        if core.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if request.generation < 0 and core.state is GroupState.EMPTY:
            return ErrorCode.NONE  # A client that assigns partitions by hand.
        is_anonymous = request.generation < 0 and not request.member_id
        if is_anonymous and request.instance_id is None and request.is_transactional:
            return ErrorCode.NONE
        member = core.members.by_id.get(request.member_id)
        if request.instance_id is not None:
            holder = core.members.static.get(request.instance_id)
            if holder is not None and holder != request.member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.state is MemberState.AWAY or request.generation != member.epoch:
            # Only members that use the consumer protocol know what a stale epoch is.
            is_told = request.knows_epochs and not request.is_transactional
            is_told = is_told and member.classic is None
            return ErrorCode.STALE_MEMBER_EPOCH if is_told else ErrorCode.ILLEGAL_GENERATION
        if member.classic is not None:
            core.touch(member, now_ms)
        elif not request.knows_epochs and not request.is_transactional:
            return ErrorCode.UNSUPPORTED_VERSION
        return ErrorCode.NONE

    def _fetch_error(self, request: FetchCheck) -> ErrorCode:
        member = self.core.members.by_id.get(request.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_current = member.epoch == request.epoch
        return ErrorCode.NONE if is_current else ErrorCode.STALE_MEMBER_EPOCH

    def _delete(self, token: Token) -> None:
        core = self.core
        if core.state is GroupState.DEAD:
            core.reply_now(token, CodeReply(error=ErrorCode.GROUP_ID_NOT_FOUND))
        elif core.state is not GroupState.EMPTY:
            core.reply_now(token, CodeReply(error=ErrorCode.NON_EMPTY_GROUP))
        elif core.write is not None:
            core.reply_now(token, CodeReply(error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            core.erase(token)

    def convert(self) -> list[GroupAction]:
        """Ends the machine: a classic group goes on with its members."""
        core = self.core
        core.actions = []
        core.become_dead(ConsumerStep.CONVERTED, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        actions, core.actions = core.actions, []
        return actions

    def retention(self, empty_since_ms: int) -> OffsetRetention:
        """Which offsets can be forgotten, if the group is empty since `empty_since_ms`."""
        core = self.core
        if core.state is GroupState.EMPTY:
            return OffsetRetention(empty_since_ms=empty_since_ms, is_empty_group=self.is_idle)
        names = {name for member in core.members.by_id.values() for name in member.topics}
        return OffsetRetention(topics=frozenset(names))

    # What operators see -------------------------------------------------------------------------

    def describe(self) -> GroupDescription:
        """In the words of classic groups."""
        core = self.core
        return GroupDescription(
            group_id=core.group_id,
            group_type=GroupType.CONSUMER,
            state=core.state,
            generation=core.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=core.assignor if core.members.by_id else "",
            leader="",
            members=tuple(
                MemberDescription(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=b"",
                    assignment=assignment_of(core, member.assigned),
                )
                for member in core.members.by_id.values()
            ),
        )

    def describe_fully(self) -> ConsumerGroupDescription:
        core = self.core
        return ConsumerGroupDescription(
            group_id=core.group_id,
            state=core.state.value,
            epoch=core.epoch,
            target_epoch=core.target_epoch,
            assignor=core.assignor,
            members=tuple(
                ConsumerMemberDescription(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    rack_id=member.rack_id,
                    epoch=member.epoch,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    topic_names=tuple(sorted(member.topic_names)),
                    pattern=member.pattern,
                    assigned=member.assigned,
                    target=member.target,
                    is_classic=member.classic is not None,
                )
                for member in core.members.by_id.values()
            ),
        )
