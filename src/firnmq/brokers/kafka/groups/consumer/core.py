"""The heart of a consumer group: its epochs, its members' partitions, and what is saved when.

The rules of the single requests are in `heartbeats` and `classic_members`; they change a group
only through what is here and in `reconciling`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from firnmq.brokers.kafka.groups.config import GroupConfig
from firnmq.brokers.kafka.groups.consumer.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Assignee
from firnmq.brokers.kafka.groups.consumer.members import ConsumerMember, Members
from firnmq.brokers.kafka.groups.consumer.messages import (
    NO_PARTITIONS,
    ConsumerHeartbeatReply,
    Partition,
    Topics,
    TopicSize,
)
from firnmq.brokers.kafka.groups.consumer.snapshot import (
    ClassicSideSnapshot,
    ConsumerGroupSnapshot,
    ConsumerMemberSnapshot,
    pack,
)
from firnmq.brokers.kafka.groups.consumer.state import (
    ConsumerStep,
    MemberState,
    next_group_state,
)
from firnmq.brokers.kafka.groups.core import MemberIdFactory
from firnmq.brokers.kafka.groups.messages import (
    CodeReply,
    Erase,
    GroupAction,
    GroupReply,
    JoinReply,
    Persist,
    Reply,
    SyncReply,
    Token,
    WriteSeq,
)
from firnmq.brokers.kafka.groups.shares import GroupShares
from firnmq.brokers.kafka.groups.state import GroupState
from firnmq.brokers.kafka.protocol.errors import ErrorCode

RETRY_MS = 1_000
"""From a write that failed to the next attempt. What was to be saved stays to be saved."""
SMALL_SIZE = 2_000
"""Members and partitions of a group that is assigned at once, in a millisecond or two, however
often it changes."""


@dataclass(slots=True, kw_only=True)
class _Write:
    seq: WriteSeq
    version: int
    """Of the group, as it is being saved."""


@dataclass(slots=True, kw_only=True)
class _Parked:
    version: int
    """What must be saved before the answer is sent."""
    body: GroupReply


class ConsumerCore:
    """State of one group. `actions` collects what the current event leads to."""

    def __init__(
        self,
        group_id: str,
        *,
        config: GroupConfig,
        new_id: MemberIdFactory,
        shares: GroupShares,
        topics: Topics,
    ) -> None:
        self.group_id = group_id
        self.config = config
        self.new_id = new_id
        self.shares = shares
        self.topics = topics
        self.state = GroupState.EMPTY
        self.members = Members(shares)
        self.epoch = 0
        """Grows with every change of members, subscriptions or topics."""
        self.target_epoch = 0
        """The epoch for which the members' targets were made."""
        self.sizes: dict[str, TopicSize] = {}
        """What members subscribe to and exists, as of `epoch`."""
        self.topics_revision: int | None = None
        self.actions: list[GroupAction] = []
        self.wake_ms: int | None = None
        """No deadline is earlier than this."""
        self.erasing: Token | None = None
        """The client that waits for the group's deletion."""
        self.version = 0
        self.saved_version = 0
        self.write: _Write | None = None
        self.write_seq = 0
        self._parked: dict[Token, _Parked] = {}
        self._retry_ms: int | None = None
        self._assign_ms: int | None = None
        """When the targets are due that wait so that many changes are one."""
        self._assigned_ms: int | None = None
        self._unsettled: set[str] = set()
        """Members that lack something of their targets, or are behind its epoch."""

    # Answers ------------------------------------------------------------------------------------

    def reply(self, token: Token, body: GroupReply) -> None:
        """Answers once everything that the answer is built on is saved."""
        self._parked[token] = _Parked(version=self.version, body=body)

    def reply_now(self, token: Token, body: GroupReply) -> None:
        """Answers with what is true whether or not the last changes are saved."""
        self.actions.append(Reply(token=token, body=body))

    def refuse(self, token: Token, error: ErrorCode, message: str) -> None:
        self.reply_now(token, ConsumerHeartbeatReply(error=error, message=message))

    def abandon(self, token: Token) -> None:
        self._parked.pop(token, None)
        if self.erasing == token:
            self.erasing = None

    def _release(self, error: ErrorCode | None = None) -> None:
        """Sends the answers that are good now, or all with an error."""
        for token, parked in list(self._parked.items()):
            if error is not None:
                self.reply_now(token, _failed(parked.body, error))
            elif parked.version <= self.saved_version:
                self.reply_now(token, parked.body)
            else:
                continue
            del self._parked[token]

    # Deadlines ----------------------------------------------------------------------------------

    def wake_by(self, deadline_ms: int) -> None:
        if self.wake_ms is None or deadline_ms < self.wake_ms:
            self.wake_ms = deadline_ms

    def touch(self, member: ConsumerMember, now_ms: int) -> None:
        """The member has been heard from."""
        timeout_ms = self.config.consumer_session_timeout_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        member.session_deadline_ms = now_ms + timeout_ms
        self.wake_by(member.session_deadline_ms)

    def deadline(self, member: ConsumerMember, now_ms: int) -> int:
        """When what the member is asked for now is due."""
        deadline_ms = now_ms + max(member.rebalance_timeout_ms, 1)
        self.wake_by(deadline_ms)
        return deadline_ms

    def expire(self, now_ms: int) -> None:
        """Acts on every deadline that has passed."""
        late = [each for each in self.members.by_id.values() if _is_late(each, now_ms)]
        self.remove(late, now_ms)
        if self._assign_ms is not None and self._assign_ms <= now_ms:
            self._assign(now_ms)
        if self._retry_ms is not None and self._retry_ms <= now_ms:
            self._retry_ms = None
        self.wake_ms = min(self._deadlines(), default=None)

    def _deadlines(self) -> Iterable[int]:
        for member in self.members.by_id.values():
            yield member.session_deadline_ms
            yield from _asked(member)
        if self._assign_ms is not None:
            yield self._assign_ms
        if self._retry_ms is not None:
            yield self._retry_ms

    # Changes ------------------------------------------------------------------------------------

    def take_up(self, now_ms: int) -> None:
        """Goes on with members that were filled in, and that have not been heard from yet."""
        members = self.members.by_id
        for member in members.values():
            self.touch(member, now_ms)
            if member.state is MemberState.REVOKING:
                member.revoke_deadline_ms = self.deadline(member, now_ms)
            if member.state is not MemberState.STABLE or member.epoch != self.target_epoch:
                self._unsettled.add(member.member_id)
        sizes = self._found_sizes()
        targets = {each for member in members.values() for each in member.target}
        if targets == _all_partitions(sizes):
            self.sizes = sizes
        # Else topics have changed since, which the next heartbeat sees.
        if members:
            self.state = next_group_state(self.state, ConsumerStep.CHANGED)
            if self.epoch > self.target_epoch:
                self._assign_ms = now_ms
                self.wake_by(now_ms)
            else:
                self.state = next_group_state(self.state, ConsumerStep.ASSIGNED)
                self.settle()

    def changed(self) -> None:
        """Something that is saved has changed."""
        self.version += 1
        if self.erasing is not None:
            token, self.erasing = self.erasing, None
            self.write = None
            self.reply_now(token, CodeReply(error=ErrorCode.NON_EMPTY_GROUP))

    def bump(self, now_ms: int) -> None:
        """Begins a new epoch: it is to be decided again who gets what."""
        self.epoch += 1
        self.changed()
        if not self.members.by_id:
            self._become_empty()
            return
        if self.state is not GroupState.ASSIGNING:
            self.state = next_group_state(self.state, ConsumerStep.CHANGED)
        size = len(self.members) + sum(each.partition_count for each in self.sizes.values())
        due_ms = now_ms
        if self._assigned_ms is not None and size > SMALL_SIZE:
            due_ms = self._assigned_ms + self.config.consumer_assignment_interval_ms
        if due_ms <= now_ms:
            self._assign(now_ms)
        else:
            self._assign_ms = due_ms
            self.wake_by(due_ms)

    def _become_empty(self) -> None:
        if self.state is not GroupState.EMPTY:
            self.state = next_group_state(self.state, ConsumerStep.EMPTIED)
        self.target_epoch = self.epoch
        self._assign_ms = None
        self._unsettled.clear()

    def look_at_topics(self, now_ms: int, *, is_bumped: bool = False) -> None:
        """Begins a new epoch if what the members subscribe to has other topics or partitions."""
        sizes = self._found_sizes()
        self.topics_revision = self.topics.revision
        if sizes != self.sizes or is_bumped:
            self.sizes = sizes
            self.bump(now_ms)

    def _found_sizes(self) -> dict[str, TopicSize]:
        names = {name for member in self.members.by_id.values() for name in member.topics}
        found = {name: self.topics.find(name) for name in sorted(names)}
        return {name: size for name, size in found.items() if size is not None}

    def _assign(self, now_ms: int) -> None:
        """Decides what every member is to have."""
        members = self.members.by_id
        assignees = {
            member_id: Assignee(
                topics=member.topics, before=member.target, instance_id=member.instance_id
            )
            for member_id, member in members.items()
        }
        targets = ASSIGNORS[self.assignor](assignees, self.sizes)
        for member_id, member in members.items():
            member.target = targets.get(member_id, NO_PARTITIONS)
            self.members.recount(member)
        self.target_epoch = self.epoch
        self._assigned_ms = now_ms
        self._assign_ms = None
        self._unsettled = set(members)
        self.changed()
        self.state = next_group_state(self.state, ConsumerStep.ASSIGNED)

    @property
    def assignor(self) -> str:
        """What most members ask for; the first in the alphabet if as many ask for another."""
        votes: dict[str, int] = {}
        for member in self.members.by_id.values():
            if member.assignor is not None:
                votes[member.assignor] = votes.get(member.assignor, 0) + 1
        return min(votes, key=lambda name: (-votes[name], name), default=DEFAULT_ASSIGNOR)

    def note_progress(self, member: ConsumerMember) -> None:
        """Files the group under what its members have, after one has changed."""
        is_settled = member.state is MemberState.STABLE and member.epoch == self.target_epoch
        if member.member_id not in self.members.by_id or is_settled:
            self._unsettled.discard(member.member_id)
        else:
            self._unsettled.add(member.member_id)
        self.settle()

    def settle(self) -> None:
        if self.state is GroupState.RECONCILING and not self._unsettled:
            self.state = next_group_state(self.state, ConsumerStep.SETTLED)
        elif self.state is GroupState.STABLE and self._unsettled:
            self.state = next_group_state(self.state, ConsumerStep.UNSETTLED)

    def remove(self, members: Iterable[ConsumerMember], now_ms: int) -> None:
        """Takes members out; what they had is free at once, as they are gone or must not go on."""
        gone = list(members)
        for member in gone:
            self.members.remove(member)
            self._unsettled.discard(member.member_id)
        if gone:
            self.look_at_topics(now_ms, is_bumped=True)

    def rename(self, member: ConsumerMember, new_id: str) -> None:
        self._unsettled.discard(member.member_id)
        self.members.rename(member, new_id)
        self.changed()

    # Writes -------------------------------------------------------------------------------------

    def save(self, now_ms: int) -> None:
        """Asks for a write if there is something to save, then sends what need not wait."""
        if self.state is GroupState.DEAD:
            return
        waits = self.write is not None or self._retry_ms is not None or self.erasing is not None
        if self.version > self.saved_version and not waits:
            self.write = _Write(seq=self._next_seq(), version=self.version)
            self.actions.append(Persist(seq=self.write.seq, snapshot=self.snapshot()))
        self._release()

    def erase(self, token: Token) -> None:
        self.erasing = token
        self.write = _Write(seq=self._next_seq(), version=self.version)
        self.actions.append(Erase(seq=self.write.seq))

    def write_done(self, seq: WriteSeq) -> None:
        if self.write is None or self.write.seq != seq:
            return
        self.saved_version = self.write.version
        self.write = None
        if self.erasing is not None:
            token, self.erasing = self.erasing, None
            self.become_dead(ConsumerStep.DELETED, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.reply_now(token, CodeReply(error=ErrorCode.NONE))

    def write_failed(self, seq: WriteSeq, now_ms: int) -> None:
        """Clients that wait are told to try again. What was to be saved is still to be saved."""
        if self.write is None or self.write.seq != seq:
            return
        self.write = None
        if self.erasing is not None:
            token, self.erasing = self.erasing, None
            self.reply_now(token, CodeReply(error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
            # The store may have erased it all the same.
            self.changed()
        self._release(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._retry_ms = now_ms + RETRY_MS
        self.wake_by(self._retry_ms)

    def _next_seq(self) -> WriteSeq:
        self.write_seq += 1
        return WriteSeq(self.write_seq)

    def become_dead(self, step: ConsumerStep, error: ErrorCode) -> None:
        """Ends the group and answers all requests that still wait."""
        self.state = next_group_state(self.state, step)
        self._release(error)
        if self.erasing is not None:
            self.reply_now(self.erasing, CodeReply(error=error))
            self.erasing = None
        self.write = None
        for member in list(self.members.by_id.values()):
            self.members.remove(member)
        self._unsettled.clear()
        self.wake_ms = None

    def snapshot(self) -> ConsumerGroupSnapshot:
        return ConsumerGroupSnapshot(
            epoch=self.epoch,
            target_epoch=self.target_epoch,
            members=tuple(map(_saved, self.members.by_id.values())),
        )


def _all_partitions(sizes: Mapping[str, TopicSize]) -> set[Partition]:
    return {
        (size.topic_id, index) for size in sizes.values() for index in range(size.partition_count)
    }


def _saved(member: ConsumerMember) -> ConsumerMemberSnapshot:
    classic = member.classic
    return ConsumerMemberSnapshot(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        owner=member.owner,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topic_names=tuple(sorted(member.topic_names)),
        pattern=member.pattern,
        matched=tuple(sorted(member.matched)),
        assignor=member.assignor,
        classic=None
        if classic is None
        else ClassicSideSnapshot(
            session_timeout_ms=classic.session_timeout_ms,
            protocols=classic.protocols,
            version=classic.version,
        ),
        state=member.state,
        epoch=member.epoch,
        previous_epoch=member.previous_epoch,
        assigned=pack(member.assigned),
        revoking=pack(member.revoking),
        target=pack(member.target),
    )


def _asked(member: ConsumerMember) -> Iterable[int]:
    deadlines = (member.revoke_deadline_ms, member.join_deadline_ms, member.sync_deadline_ms)
    return (each for each in deadlines if each is not None)


def _is_late(member: ConsumerMember, now_ms: int) -> bool:
    return any(each <= now_ms for each in (member.session_deadline_ms, *_asked(member)))


def _failed(body: GroupReply, error: ErrorCode) -> GroupReply:
    match body:
        case ConsumerHeartbeatReply():
            return ConsumerHeartbeatReply(error=error)
        case JoinReply():
            return JoinReply(error=error, member_id=body.member_id)
        case SyncReply():
            return SyncReply(error=error)
        case _:
            return CodeReply(error=error)
