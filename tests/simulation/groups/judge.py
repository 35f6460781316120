"""Watches a group from outside and objects to what must never happen.

It keeps its own books of who was heard from and when, so that it does not believe the group's.
"""

from __future__ import annotations

from dataclasses import dataclass

from firnmq.brokers.kafka.groups import (
    Group,
    GroupConfig,
    GroupState,
    JoinReply,
    JoinRequest,
    LeaveRequest,
)
from firnmq.brokers.kafka.groups.messages import (
    Abandoned,
    Asked,
    GroupEvent,
    GroupRequest,
    Reply,
    Tick,
)
from firnmq.brokers.kafka.groups.roster import Member
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from tests.unit.brokers.kafka.groups.invariants import check

NO_SIGN_OF_LIFE = {
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
}
"""Answers after which the group need not believe that the member it has in mind is alive."""


@dataclass
class Seen:
    """A member, or a promised id, as it was before an event."""

    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    is_parked: bool
    is_promised: bool
    is_new: bool
    """It never had an assignment, so it has to go on with what it began."""


def _seen(member: Member) -> Seen:
    return Seen(
        member.instance_id,
        member.session_timeout_ms,
        member.rebalance_timeout_ms,
        member.is_parked,
        False,
        not member.has_synced,
    )


class Judge:
    def __init__(self, config: GroupConfig) -> None:
        self.config = config
        self.generations: set[int] = set()
        self.preparing_since_ms = 0
        self.has_hold = False
        self.sync_timeout_ms = 0
        self.leaders: dict[int, str] = {}
        self.heard_ms: dict[str, int] = {}
        self.told_ms: dict[tuple[str, int], int] = {}
        self.sessions_ms: dict[str, int] = {}
        self.gone: dict[str, str] = {}
        self._before: dict[str, Seen] = {}
        self._generation_before = 0
        self._state_before = GroupState.EMPTY

    def forget(self, group: Group, reason: str) -> None:
        """The group that follows was never saved, or was deleted: it starts from nothing."""
        for member_id in self.look(group):
            self.gone[member_id] = reason
        self.generations.clear()
        self.leaders.clear()

    def restarted(self, before: Group, after: Group, now_ms: int) -> None:
        """The group was restored from what was saved; some members may never have been."""
        kept = self.look(after)
        for member_id in self.look(before).keys() - kept.keys():
            self.gone[member_id] = "lost in a restart"
        for member_id in kept:
            self.gone.pop(member_id, None)
            self.heard_ms[member_id] = now_ms

    def look(self, group: Group) -> dict[str, Seen]:
        roster = group._core.roster
        seen = {member_id: _seen(m) for member_id, m in roster.members.items()}
        for member_id in roster.promised:
            seen[member_id] = Seen(None, self.sessions_ms.get(member_id, 0), 0, False, True, True)
        return seen

    def heard(self, member_id: str, now_ms: int) -> None:
        self.heard_ms[member_id] = now_ms

    def before(self, group: Group, event: GroupEvent, now_ms: int) -> None:
        self._before = self.look(group)
        self._generation_before = group.generation
        self._state_before = group.state
        if isinstance(event, Abandoned):
            member = group._core.roster.parked_with(event.token)
            if member is not None:
                self.heard(member.member_id, now_ms)

    def after(self, group: Group, event: GroupEvent, now_ms: int) -> None:
        check(group)
        roster = group._core.roster
        if group.generation != self._generation_before:
            assert group.generation > self._generation_before, "a generation went back"
            assert group.generation not in self.generations, "a generation was used twice"
            self.generations.add(group.generation)
        # One event can lead out of a state and, in the next generation, back into it.
        if group.state is not self._state_before or group.generation != self._generation_before:
            self._state_changed(group, now_ms)
        if group.state is GroupState.STABLE:
            for member in roster.members.values():
                self._has_assignment(group, member)
        for member_id in self.look(group).keys() - self._before.keys():
            self.heard(member_id, now_ms)
            if isinstance(event, Asked) and isinstance(event.request, JoinRequest):
                self.sessions_ms[member_id] = event.request.session_timeout_ms
        if group.state is not GroupState.DEAD:
            for member_id in self._before.keys() - self.look(group).keys():
                self.gone[member_id] = self._why_gone(group, member_id, event, now_ms)

    def _state_changed(self, group: Group, now_ms: int) -> None:
        if group.state is GroupState.PREPARING:
            self.preparing_since_ms = now_ms
            was_empty = self._state_before is GroupState.EMPTY
            self.has_hold = was_empty and self.config.initial_rebalance_delay_ms > 0
        elif group.state is GroupState.COMPLETING:
            self.sync_timeout_ms = group._core.roster.rebalance_timeout_ms()

    def replied(self, group: Group, action: Reply, request: GroupRequest, now_ms: int) -> None:
        """An answer leaves the group."""
        # A newcomer's parked join is answered under the id that it did not know yet.
        about = action.body if isinstance(action.body, JoinReply) else request
        asked_id: str = getattr(about, "member_id", "")
        if action.body.error is ErrorCode.UNKNOWN_MEMBER_ID:
            assert asked_id not in self.look(group), f"{asked_id} is a member"
            assert asked_id in self.gone, f"{asked_id} never went"
        if action.body.error is ErrorCode.FENCED_INSTANCE_ID:
            assert asked_id not in self.look(group), f"{asked_id} was not replaced"
        if isinstance(action.body, JoinReply):
            self._joined(action.body, now_ms)
        if action.body.error not in NO_SIGN_OF_LIFE:
            self.heard(asked_id, now_ms)

    def _joined(self, reply: JoinReply, now_ms: int) -> None:
        if reply.error is ErrorCode.NONE:
            self.heard(reply.member_id, now_ms)
            # To be told again, as after a lost answer, does not give more time to sync.
            self.told_ms.setdefault((reply.member_id, reply.generation), now_ms)
        if reply.members:
            assert reply.leader == reply.member_id
            known = self.leaders.setdefault(reply.generation, reply.member_id)
            assert known == reply.member_id, f"generation {reply.generation} has two leaders"

    def _has_assignment(self, group: Group, member: Member) -> None:
        assert member.assignment == b"%d" % group.generation, (
            f"{member.member_id} holds {member.assignment!r} in generation {group.generation}"
        )

    def _why_gone(self, group: Group, member_id: str, event: GroupEvent, now_ms: int) -> str:
        """The reason a member is gone; there must be a good one."""
        seen = self._before[member_id]
        if seen.instance_id is not None and group._core.roster.static_id(seen.instance_id):
            return "replaced"
        if isinstance(event, Asked) and isinstance(event.request, LeaveRequest):
            for leaver in event.request.members:
                by_instance = not leaver.member_id and leaver.instance_id == seen.instance_id
                if leaver.member_id == member_id or by_instance:
                    return "left"
        assert isinstance(event, Tick), f"{member_id} was removed by {event}"
        assert not seen.is_parked, f"{member_id} was removed while it waited for us"
        session_ms, sync_ms = seen.session_timeout_ms, self.sync_timeout_ms
        if seen.is_new:
            session_ms = min(session_ms, self.config.promise_ms)
            sync_ms = min(sync_ms, self.config.promise_ms)
        if now_ms - self.heard_ms[member_id] >= session_ms:
            return "expired"
        assert not seen.is_promised, f"the promise to {member_id} was broken"
        delay_ms = self.config.initial_rebalance_delay_ms
        wait_ms = delay_ms if self.has_hold else seen.rebalance_timeout_ms
        is_over = now_ms - self.preparing_since_ms >= wait_ms
        if self._state_before is GroupState.PREPARING and is_over:
            return "did not join again"
        assert now_ms - self.told_ms[member_id, self._generation_before] >= sync_ms, (
            f"{member_id} was removed without a reason"
        )
        return "did not sync"
