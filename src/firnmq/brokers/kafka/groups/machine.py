"""A classic consumer group as a state machine: `handle(event, now_ms)` gives actions.

There is no clock, no randomness and no waiting in here, so that the same code runs in a broker
and in a simulation. The owner of a Group hands it every event from one thread, carries out the
actions in order, and sends a Tick when `wake_ms` has come.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from firnmq.brokers.kafka.groups.config import GroupConfig
from firnmq.brokers.kafka.groups.consumer.messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    FetchCheck,
)
from firnmq.brokers.kafka.groups.core import GroupCore, MemberIdFactory
from firnmq.brokers.kafka.groups.joining import finish_rename, handle_join, resume_deferred
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
    WriteSeq,
)
from firnmq.brokers.kafka.groups.requests import (
    handle_commit,
    handle_delete,
    handle_heartbeat,
    handle_leave,
    handle_sync,
)
from firnmq.brokers.kafka.groups.roster import restored_member
from firnmq.brokers.kafka.groups.shares import GroupShares
from firnmq.brokers.kafka.groups.snapshot import GroupSnapshot
from firnmq.brokers.kafka.groups.state import GroupState, Step
from firnmq.brokers.kafka.groups.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    subscribed_topics,
)
from firnmq.brokers.kafka.groups.writes import AssignmentWrite, EraseWrite, RenameWrite
from firnmq.brokers.kafka.protocol.errors import ErrorCode


class Group:
    """One consumer group."""

    def __init__(
        self,
        group_id: str,
        *,
        config: GroupConfig,
        new_id: MemberIdFactory,
        shares: GroupShares | None = None,
    ) -> None:
        """`shares` are those of all groups of a node."""
        self._core = GroupCore(
            group_id, config=config, new_id=new_id, shares=shares or GroupShares(config)
        )

    @classmethod
    def restore(
        cls,
        group_id: str,
        snapshot: GroupSnapshot,
        now_ms: int,
        *,
        config: GroupConfig,
        new_id: MemberIdFactory,
        generation_gap: int,
        shares: GroupShares | None = None,
    ) -> Group:
        """The group as it was saved; its members have one session time-out to be heard from.

        Clients know of a generation before it is saved, and one that ends before its leader has
        synced never is. The next generation is therefore `generation_gap` ahead of the saved one:
        drawn at random and large, it keeps a number from meaning two generations even when the
        node restarts twice from the same snapshot.
        """
        assert generation_gap >= 1
        group = cls(group_id, config=config, new_id=new_id, shares=shares)
        core = group._core
        core.generation = snapshot.generation
        core.generation_step = generation_gap
        core.protocol_type = snapshot.protocol_type
        core.protocol_name = snapshot.protocol_name
        for saved in snapshot.members:
            member = restored_member(saved)
            core.roster.add(member)
            core.touch(member, now_ms)
        if snapshot.members:
            core.roster.leader = snapshot.leader
            core.state = GroupState.STABLE
            size = sum(len(each.assignment) for each in snapshot.members)
            core.count_assignments(group.owner, size)
        return group

    @property
    def core(self) -> GroupCore:
        """For the conversion into a consumer group."""
        return self._core

    @property
    def group_id(self) -> str:
        return self._core.group_id

    @property
    def state(self) -> GroupState:
        return self._core.state

    @property
    def generation(self) -> int:
        return self._core.generation

    @property
    def protocol_type(self) -> str:
        return self._core.protocol_type or ""

    @property
    def leader(self) -> str | None:
        return self._core.roster.leader

    @property
    def owner(self) -> str:
        """The client that the leader counts for; empty without a leader."""
        leader = self._core.roster.members.get(self.leader or "")
        return "" if leader is None else leader.owner

    @property
    def member_count(self) -> int:
        return len(self._core.roster)

    @property
    def wake_ms(self) -> int | None:
        """When the next Tick is due; it does no harm to be early."""
        return self._core.wake_ms

    @property
    def is_idle(self) -> bool:
        """No member is in it or on the way into it, and no write is under way."""
        core = self._core
        return core.state is GroupState.EMPTY and not core.roster.promised and core.write is None

    @property
    def is_blank(self) -> bool:
        """Idle, and never had a generation: indistinguishable from a group that is not there."""
        return self.is_idle and self._core.generation == 0

    def handle(self, event: GroupEvent, now_ms: int) -> list[GroupAction]:
        """Takes in one event; the actions are to be carried out in this order."""
        core = self._core
        core.actions = []
        match event:
            case Asked(token=token, request=request):
                self._ask(token, request, now_ms)
            case Tick():
                core.expire(now_ms)
            case Abandoned(token=token):
                self._abandon(token, now_ms)
            case WriteDone(seq=seq):
                self._write_done(seq, now_ms)
            case WriteFailed(seq=seq):
                self._write_failed(seq, now_ms)
            case Unloaded():
                core.become_dead(Step.UNLOADED, ErrorCode.NOT_COORDINATOR, now_ms)
            case _:
                assert_never(event)
        resume_deferred(core, now_ms)
        actions, core.actions = core.actions, []
        return actions

    def convert(self, now_ms: int) -> list[GroupAction]:
        """Ends the machine: another one goes on with its members, which are to join again."""
        core = self._core
        core.actions = []
        core.cancel_write()
        core.become_dead(Step.CONVERTED, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        actions, core.actions = core.actions, []
        return actions

    def rebalance(self, now_ms: int) -> list[GroupAction]:
        """Has all members join again."""
        core = self._core
        core.actions = []
        core.rebalance(now_ms)
        actions, core.actions = core.actions, []
        return actions

    def retention(self, empty_since_ms: int) -> OffsetRetention:
        """Which offsets can be forgotten, if the group is empty since `empty_since_ms`."""
        core = self._core
        if self.is_idle:
            return OffsetRetention(empty_since_ms=empty_since_ms, is_empty_group=True)
        topics = None
        if core.state is GroupState.STABLE and core.protocol_type == CONSUMER_PROTOCOL_TYPE:
            members = core.roster.members.values()
            topics = subscribed_topics(member.metadata(core.protocol_name) for member in members)
        if topics is None:
            return OffsetRetention(is_kept=True)
        return OffsetRetention(topics=topics)

    def describe(self) -> GroupDescription:
        """What an operator sees."""
        core = self._core
        is_settled = core.state is GroupState.STABLE
        return GroupDescription(
            group_id=core.group_id,
            state=core.state,
            generation=core.generation,
            protocol_type=core.protocol_type or "",
            protocol_name=(core.protocol_name or "") if is_settled else "",
            leader=core.roster.leader or "",
            members=tuple(
                MemberDescription(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    # Outside Stable the chosen protocol may not be the next one.
                    metadata=member.metadata(core.protocol_name) if is_settled else b"",
                    assignment=member.assignment,
                )
                for member in core.roster.members.values()
            ),
        )

    def _ask(self, token: Token, request: GroupRequest, now_ms: int) -> None:
        core = self._core
        match request:
            case HeartbeatRequest():
                handle_heartbeat(core, token, request, now_ms)
            case CommitRequest():
                handle_commit(core, token, request, now_ms)
            case JoinRequest():
                handle_join(core, token, request, now_ms)
            case SyncRequest():
                handle_sync(core, token, request, now_ms)
            case LeaveRequest():
                handle_leave(core, token, request, now_ms)
            case DeleteRequest():
                handle_delete(core, token)
            case FetchCheck():
                core.reply(token, CodeReply(error=ErrorCode.NONE))
            case ConsumerHeartbeat():
                refused = ErrorCode.UNKNOWN_MEMBER_ID
                core.reply(token, ConsumerHeartbeatReply(error=refused))
            case _:
                assert_never(request)

    def _abandon(self, token: Token, now_ms: int) -> None:
        core = self._core
        core.deferred = [entry for entry in core.deferred if entry[0] != token]
        if isinstance(core.write, RenameWrite) and core.write.token == token:
            core.write = replace(core.write, token=None)
        member = core.roster.parked_with(token)
        if member is not None:
            core.unpark(member, now_ms)

    def _write_done(self, seq: WriteSeq, now_ms: int) -> None:
        core = self._core
        write = core.write
        if write is None or write.seq != seq:
            return  # What it was for has been overtaken.
        core.write = None
        match write:
            case AssignmentWrite():
                core.become_stable(write.assignments, now_ms)
            case RenameWrite():
                finish_rename(core, write, now_ms)
            case EraseWrite():
                core.become_dead(Step.DELETED, ErrorCode.COORDINATOR_NOT_AVAILABLE, now_ms)
                core.reply(write.token, CodeReply(error=ErrorCode.NONE))
            case _:
                assert_never(write)

    def _write_failed(self, seq: WriteSeq, now_ms: int) -> None:
        """Everything stays as it was; requests that waited are told to try again."""
        core = self._core
        write = core.write
        if write is None or write.seq != seq:
            return
        core.write = None
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        match write:
            case AssignmentWrite():
                members = list(core.roster.members.values())
                parked = [member for member in members if member.sync_token is not None]
                for member in parked:
                    core.release(member, error, now_ms)
                core.expect_syncs(parked, now_ms)
            case RenameWrite():
                if write.token is not None:
                    core.refuse_join(write.token, write.request.member_id, error)
            case EraseWrite():
                core.reply(write.token, CodeReply(error=error))
            case _:
                assert_never(write)
