"""The heart of a group: its state, its deadlines, and how a rebalance begins and ends.

The rules of the single requests are in `joining` and `requests`; they change a group only through
what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from firnmq.brokers.kafka.groups.config import GroupConfig
from firnmq.brokers.kafka.groups.messages import (
    CodeReply,
    Erase,
    GroupAction,
    GroupReply,
    JoinedMember,
    JoinReply,
    JoinRequest,
    Persist,
    Reply,
    SyncReply,
    Token,
    WriteSeq,
)
from firnmq.brokers.kafka.groups.roster import Member, Roster
from firnmq.brokers.kafka.groups.shares import GroupShares
from firnmq.brokers.kafka.groups.snapshot import GroupSnapshot
from firnmq.brokers.kafka.groups.state import GroupState, Step, next_state
from firnmq.brokers.kafka.groups.writes import (
    AssignmentWrite,
    EraseWrite,
    PendingWrite,
    RenameWrite,
    renamed_snapshot,
)
from firnmq.brokers.kafka.protocol.errors import ErrorCode

MemberIdFactory = Callable[[str], str]
"""Makes a member id that was never used before; its argument is a prefix for human readers."""

GENERATION_MAX = 2**31 - 1
"""The field is an int32. After the last number comes 1: clients compare for equality only."""


@dataclass(slots=True, kw_only=True)
class InitialHold:
    """An empty group's wait for more members: at most until `end_ms`, longer while they come."""

    end_ms: int
    has_newcomer: bool = False


class GroupCore:
    """State of one group. `actions` collects what the current event leads to."""

    def __init__(
        self,
        group_id: str,
        *,
        config: GroupConfig,
        new_id: MemberIdFactory,
        shares: GroupShares,
    ) -> None:
        self.group_id = group_id
        self.config = config
        self.shares = shares
        self._assigned = ("", 0)
        """The owner of the assignments, and their bytes."""
        self.new_id = new_id
        self.state = GroupState.EMPTY
        self.roster = Roster(shares)
        self.generation = 0
        self.generation_step = 1
        """How far the next generation is from this one."""
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.write: PendingWrite | None = None
        self.deferred: list[tuple[Token, JoinRequest]] = []
        """Joins of static members that wait for the write of another such join, oldest first;
        at most one per instance id."""
        self.actions: list[GroupAction] = []
        self.wake_ms: int | None = None
        """No deadline is earlier than this. It may be too early, as a heartbeat only moves its
        member's own deadline; the tick it causes then finds nothing to do."""
        self._preparing_since_ms = 0
        self._rebalance_deadline_ms = 0
        self._hold: InitialHold | None = None
        self.write_seq = 0

    # Answers.

    def reply(self, token: Token, body: GroupReply) -> None:
        self.actions.append(Reply(token=token, body=body))

    def refuse_join(self, token: Token, member_id: str, error: ErrorCode) -> None:
        self.reply(token, JoinReply(error=error, member_id=member_id))

    def answer_join(self, token: Token, member: Member, *, leader: str | None = None) -> None:
        """Tells a member of the current generation; `leader` is told in place of the real one."""
        told = self.roster.leader if leader is None else leader
        is_leader = told == member.member_id
        self.reply(
            token,
            JoinReply(
                error=ErrorCode.NONE,
                member_id=member.member_id,
                generation=self.generation,
                protocol_type=self.protocol_type,
                protocol_name=self.protocol_name,
                leader=told or "",
                members=self._joined_members() if is_leader else (),
            ),
        )

    def answer_sync(self, token: Token, member: Member) -> None:
        self.reply(
            token,
            SyncReply(
                error=ErrorCode.NONE,
                protocol_type=self.protocol_type,
                protocol_name=self.protocol_name,
                assignment=member.assignment,
            ),
        )

    def release(self, member: Member, error: ErrorCode, now_ms: int) -> None:
        """Answers what the member has parked with an error."""
        if member.join_token is not None:
            self.refuse_join(member.join_token, member.member_id, error)
            member.join_token = None
            self.touch(member, now_ms)
        if member.sync_token is not None:
            self.reply(member.sync_token, SyncReply(error=error))
            member.sync_token = None
            self.touch(member, now_ms)

    def _joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                metadata=member.metadata(self.protocol_name),
            )
            for member in self.roster.members.values()
        )

    # Deadlines.

    def wake_by(self, deadline_ms: int) -> None:
        if self.wake_ms is None or deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms

    def touch(self, member: Member, now_ms: int) -> None:
        """The member has been heard from."""
        member.session_deadline_ms = now_ms + member.session_timeout_ms
        self.wake_by(member.session_deadline_ms)

    def expect_syncs(self, members: Iterable[Member], now_ms: int) -> None:
        """From now on these members have one rebalance time-out to sync.

        A member that heartbeats but never syncs would otherwise hold up everyone for ever.
        """
        timeout_ms = self.roster.rebalance_timeout_ms()
        for member in members:
            allowed_ms = timeout_ms
            if not member.has_synced:
                allowed_ms = min(timeout_ms, self.config.promise_ms)
            member.sync_deadline_ms = now_ms + allowed_ms
            self.wake_by(member.sync_deadline_ms)

    def expire(self, now_ms: int) -> None:
        """Acts on every deadline that has passed."""
        roster = self.roster
        for member_id in [key for key, each in roster.promised.items() if each.due_ms <= now_ms]:
            roster.end_promise(member_id)
        self.remove([m.member_id for m in roster.members.values() if _is_late(m, now_ms)], now_ms)
        self.try_complete(now_ms)
        if self.state is GroupState.PREPARING and self._rebalance_deadline_ms <= now_ms:
            self._end_wait(now_ms)
        self.wake_ms = min(self._deadlines(), default=None)

    def _deadlines(self) -> Iterable[int]:
        yield from (promise.due_ms for promise in self.roster.promised.values())
        for member in self.roster.members.values():
            if not member.is_parked:
                yield member.session_deadline_ms
            if member.sync_deadline_ms is not None:
                yield member.sync_deadline_ms
        if self.state is GroupState.PREPARING:
            yield self._rebalance_deadline_ms

    def _end_wait(self, now_ms: int) -> None:
        hold = self._hold
        if hold is not None and hold.has_newcomer and now_ms < hold.end_ms:
            hold.has_newcomer = False
            delay_end_ms = now_ms + self.config.initial_rebalance_delay_ms
            self._rebalance_deadline_ms = min(delay_end_ms, hold.end_ms)
            return
        self._complete(now_ms)

    # Rebalances.

    def prepare(self, now_ms: int) -> None:
        """Begins a rebalance: everyone has to join again."""
        was_empty = self.state is GroupState.EMPTY
        self.state = next_state(self.state, Step.REBALANCE)
        self.cancel_write()
        self.count_assignments("", 0)
        for member in self.roster.members.values():
            member.sync_deadline_ms = None
            member.assignment = b""
            self.release(member, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        timeout_ms = self.roster.rebalance_timeout_ms()
        delay_ms = self.config.initial_rebalance_delay_ms if was_empty else 0
        if delay_ms > 0:
            self._hold = InitialHold(end_ms=now_ms + max(timeout_ms, delay_ms))
            timeout_ms = delay_ms
        self._preparing_since_ms = now_ms
        self._rebalance_deadline_ms = now_ms + timeout_ms
        self.wake_by(self._rebalance_deadline_ms)

    def rebalance(self, now_ms: int) -> None:
        """Begins a rebalance unless one has begun, and ends it if no member is missing."""
        if self.state is not GroupState.PREPARING:
            self.prepare(now_ms)
        self.try_complete(now_ms)

    def note_newcomer(self) -> None:
        if self._hold is not None:
            self._hold.has_newcomer = True

    def try_complete(self, now_ms: int) -> None:
        """Ends the wait for joins as soon as there is nothing left to wait for."""
        if self.state is not GroupState.PREPARING:
            return
        has_all = self._hold is None and self.roster.has_all_joined()
        if has_all or not self.roster.members:
            self._complete(now_ms)

    def _complete(self, now_ms: int) -> None:
        self._hold = None
        roster = self.roster
        missing = [m for m in roster.members.values() if m.join_token is None]
        for member in missing:
            # A static member is expected to come back; only its session time-out removes it.
            if member.instance_id is None:
                roster.remove(member.member_id)
        if not roster.members:
            self._become_empty()
        elif roster.elect_leader():
            self._become_completing(now_ms)
        else:
            self._rebalance_deadline_ms = now_ms + max(roster.rebalance_timeout_ms(), 1)
            self.wake_by(self._rebalance_deadline_ms)

    def _become_empty(self) -> None:
        self.state = next_state(self.state, Step.EMPTIED)
        self._begin_generation()
        self.protocol_name = None
        # No request waits for this write. If it is lost, the store keeps members, which expire.
        self.persist(self.snapshot())

    def _become_completing(self, now_ms: int) -> None:
        self.state = next_state(self.state, Step.JOINED)
        self._begin_generation()
        self.protocol_name = self.roster.choose_protocol()
        joined = [m for m in self.roster.members.values() if m.join_token is not None]
        for member in joined:
            assert member.join_token is not None
            self.answer_join(member.join_token, member)
            member.join_token = None
            self.touch(member, now_ms)
        self.expect_syncs(joined, now_ms)

    def _begin_generation(self) -> None:
        generation = self.generation + self.generation_step
        self.generation = generation if generation <= GENERATION_MAX else 1
        self.generation_step = 1

    def become_stable(self, assignments: dict[str, bytes], now_ms: int) -> None:
        """The assignments are saved: hands them to the members that wait."""
        self.state = next_state(self.state, Step.ASSIGNED)
        for member in self.roster.members.values():
            member.assignment = member.held = assignments[member.member_id]
            member.has_synced = member.has_synced or member.sync_token is not None
            token, member.sync_token = member.sync_token, None
            if token is not None:
                self.answer_sync(token, member)
                self.touch(member, now_ms)

    def become_dead(self, step: Step, error: ErrorCode, now_ms: int) -> None:
        """Ends the group and answers all requests that still wait."""
        self.state = next_state(self.state, step)
        if isinstance(self.write, EraseWrite):
            self.reply(self.write.token, CodeReply(error=error))
            self.write = None
        self.cancel_write()
        for member in self.roster.members.values():
            self.release(member, error, now_ms)
        for token, request in self.deferred:
            self.refuse_join(token, request.member_id, error)
        self.deferred.clear()
        self.count_assignments("", 0)
        self.roster.clear()
        self._hold = None
        self.wake_ms = None

    # Members.

    def park_join(self, member: Member, token: Token) -> None:
        if member.join_token is not None:
            # The client has asked again on another connection; one of the two must be answered.
            self.refuse_join(member.join_token, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)
        member.join_token = token
        if self._hold is None:
            # A member that came after the wait had begun may need longer than those before it,
            # should it lose its connection and have to ask again.
            deadline_ms = self._preparing_since_ms + member.rebalance_timeout_ms
            self._rebalance_deadline_ms = max(self._rebalance_deadline_ms, deadline_ms)

    def park_sync(self, member: Member, token: Token) -> None:
        if member.sync_token is not None:
            self.reply(member.sync_token, SyncReply(error=ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_token = token
        member.sync_deadline_ms = None

    def unpark(self, member: Member, now_ms: int) -> None:
        """The requester is gone: the member stays, but has to show up again in its session."""
        if member.sync_token is not None:
            self.expect_syncs([member], now_ms)
        member.join_token = None
        member.sync_token = None
        self.touch(member, now_ms)
        if not member.has_synced:
            member.session_deadline_ms = min(
                member.session_deadline_ms, now_ms + self.config.promise_ms
            )
            self.wake_by(member.session_deadline_ms)

    def remove(self, member_ids: Iterable[str], now_ms: int) -> None:
        """Takes members out, and rebalances among those that stay."""
        removed = [self.roster.remove(member_id) for member_id in member_ids]
        for member in removed:
            self.release(member, ErrorCode.UNKNOWN_MEMBER_ID, now_ms)
        if removed:
            self.rebalance(now_ms)

    def rename(self, member_id: str, new_id: str, request: JoinRequest, now_ms: int) -> Member:
        """A static member has started again under the same instance id."""
        member = self.roster.members[member_id]
        self.release(member, ErrorCode.FENCED_INSTANCE_ID, now_ms)
        self.roster.rename(member_id, new_id)
        self.roster.update(member, request)
        self.touch(member, now_ms)
        return member

    # Writes.

    def persist(self, snapshot: GroupSnapshot) -> WriteSeq:
        seq = self._next_seq()
        self.actions.append(Persist(seq=seq, snapshot=snapshot))
        return seq

    def count_assignments(self, owner: str, size: int) -> None:
        """From now on the group's assignments take so many bytes, which this client brought."""
        before, before_size = self._assigned
        self.shares.add(before, -before_size)
        self.shares.add(owner, size)
        self._assigned = (owner, size)

    def persist_assignments(self, assignments: dict[str, bytes]) -> None:
        assert self.roster.leader is not None
        owner = self.roster.members[self.roster.leader].owner
        self.count_assignments(owner, sum(map(len, assignments.values())))
        seq = self.persist(self.snapshot(assignments))
        self.write = AssignmentWrite(seq=seq, assignments=assignments)

    def persist_rename(self, token: Token, request: JoinRequest, member_id: str) -> None:
        assert request.instance_id is not None
        new_id = self.new_id(request.instance_id)
        after = renamed_snapshot(self.snapshot(), request, member_id, new_id)
        self.write = RenameWrite(
            seq=self.persist(after),
            token=token,
            request=request,
            member_id=member_id,
            new_id=new_id,
        )

    def erase(self, token: Token) -> None:
        seq = self._next_seq()
        self.actions.append(Erase(seq=seq))
        self.write = EraseWrite(seq=seq, token=token)

    def snapshot(self, assignments: dict[str, bytes] | None = None) -> GroupSnapshot:
        """What to save; `assignments` are those that are about to hold."""
        return GroupSnapshot(
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.roster.leader,
            members=tuple(
                member.snapshot(
                    member.assignment if assignments is None else assignments[member.member_id]
                )
                for member in self.roster.members.values()
            ),
        )

    def _next_seq(self) -> WriteSeq:
        self.write_seq += 1
        return WriteSeq(self.write_seq)

    def cancel_write(self) -> None:
        """What the pending write was for no longer holds; whether it succeeds is all the same."""
        write, self.write = self.write, None
        match write:
            case RenameWrite():
                if write.token is not None:
                    self.deferred.insert(0, (write.token, write.request))
            case EraseWrite():
                self.reply(write.token, CodeReply(error=ErrorCode.NON_EMPTY_GROUP))
            case AssignmentWrite() | None:
                pass


def _is_late(member: Member, now_ms: int) -> bool:
    if member.sync_deadline_ms is not None and member.sync_deadline_ms <= now_ms:
        return True
    return not member.is_parked and member.session_deadline_ms <= now_ms
