"""The driver of all groups of a node: futures for parked requests, one timer, the store."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from types import TracebackType
from typing import assert_never

from firnmq.brokers.kafka.groups.config import GroupConfig
from firnmq.brokers.kafka.groups.consumer.messages import (
    JOIN_EPOCH,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    FetchCheck,
    Topics,
)
from firnmq.brokers.kafka.groups.coordinated import CoordinatedGroup
from firnmq.brokers.kafka.groups.core import MemberIdFactory
from firnmq.brokers.kafka.groups.messages import (
    Abandoned,
    Asked,
    CodeReply,
    CommitRequest,
    DeleteRequest,
    Erase,
    GroupAction,
    GroupDescription,
    GroupEvent,
    GroupReply,
    GroupRequest,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeaveRequest,
    OffsetRetention,
    Persist,
    Reply,
    SyncReply,
    SyncRequest,
    Tick,
    Token,
    Unloaded,
    WriteDone,
    WriteFailed,
    WriteSeq,
)
from firnmq.brokers.kafka.groups.shares import GroupShares
from firnmq.brokers.kafka.groups.state import GroupState
from firnmq.brokers.kafka.groups.store import GroupStore, GroupWriter
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from firnmq.clock import Clock, SystemClock
from firnmq.errors import Closed
from firnmq.eventlog import EventLogger
from firnmq.ids import TimestampMs

_log = EventLogger("groups")

_MEMBER_ID_PREFIX_CHARS_MAX = 255
"""A member id travels as a string of at most 32,767 bytes, and a client id may fill that alone."""

_STALE_WAKE_COUNT_MAX = 1_000
"""Replaced entries the heap of deadlines may hold, besides as many as there are live ones; groups
that come and go would fill it otherwise."""


_GENERATION_GAP_RANGE = (1_000, 100_000)
"""At least more than the rebalances a group can begin in a row without ending one; at most so
much that the numbers last for tens of thousands of restarts."""


class MonotonicClock(Clock):
    """Milliseconds that never jump: setting the machine's clock must not expire every session.

    Groups compare times with each other only, and save none.
    """

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self.steady_ms())

    def steady_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


def random_member_id(prefix: str) -> str:
    """The MemberIdFactory of a real node."""
    return f"{prefix[:_MEMBER_ID_PREFIX_CHARS_MAX]}-{uuid.uuid4()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatistics:
    group_count: int
    member_count: int
    idle_group_count: int
    parked_request_count: int
    held_bytes: int
    """Of members and assignments."""
    write_count: int
    """Groups with a write under way or queued."""


class GroupCoordinator:
    """All consumer groups of a node. An async context manager; used from one event loop.

    A caller that is cancelled while it waits, because its connection is gone, leaves its member
    in the group until the session time-out.
    """

    def __init__(
        self,
        store: GroupStore,
        topics: Topics,
        *,
        config: GroupConfig | None = None,
        clock: Clock | None = None,
        wall_clock: Clock | None = None,
        new_id: MemberIdFactory = random_member_id,
        random: Random | None = None,
    ) -> None:
        self._store = store
        self._topics = topics
        self._config = config or GroupConfig()
        self._clock = clock or MonotonicClock()
        self._wall_clock = wall_clock or SystemClock()
        """For what is saved; sessions and time-outs are by the other one."""
        self._new_id = new_id
        self._random = random or Random()
        self._groups: dict[str, CoordinatedGroup] = {}
        self._idle: dict[str, None] = {}
        """Groups that may be forgotten to make room, the one idle for longest first."""
        self._empty_since_ms: dict[str, int] = {}
        """Wall time since which a group that had members is empty."""
        self._shares = GroupShares(self._config)
        self._begun_by: dict[str, str] = {}
        """Group in use → the client that began it."""
        self._begun_count: Counter[str] = Counter()
        """Client → its groups in use."""
        self._parked: dict[Token, asyncio.Future[GroupReply]] = {}
        self._tokens = itertools.count(1)
        self._wakes: list[tuple[int, str]] = []
        self._wake_of: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._tasks = asyncio.TaskGroup()
        self._writer: GroupWriter | None = None

    async def __aenter__(self) -> GroupCoordinator:
        snapshots = await self._store.load_all()
        now_ms = self._clock.now_ms()
        wall_ms = int(self._wall_clock.now_ms())
        for group_id, snapshot in snapshots.items():
            if not snapshot.members:
                self._empty_since_ms[group_id] = snapshot.empty_since_ms or wall_ms
            group = CoordinatedGroup.restore(
                group_id,
                snapshot,
                now_ms,
                config=self._config,
                new_id=self._new_id,
                topics=self._topics,
                shares=self._shares,
                generation_gap=self._random.randrange(*_GENERATION_GAP_RANGE),
            )
            self._keep(group, group.owner)
        await self._tasks.__aenter__()
        self._writer = GroupWriter(self._store, self._tasks, self._config)
        self._arm()
        _log.info("groups_loaded", count=len(snapshots))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        now_ms = self._clock.now_ms()
        for group in list(self._groups.values()):
            self._carry_out(group, group.handle(Unloaded(), now_ms))
        self._groups.clear()
        self._idle.clear()
        self._begun_by.clear()
        self._begun_count.clear()
        self._wakes.clear()
        self._wake_of.clear()
        if self._timer is not None:
            self._timer.cancel()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        # Writes under way come to their end, or to their time-out.
        await self._tasks.__aexit__(kind, error, trace)

    # What clients ask. Only joins, syncs and deletions can wait.

    async def join(self, group_id: str, request: JoinRequest) -> JoinReply:
        error = self._group_error(group_id, is_join=True)
        if error is ErrorCode.NONE and group_id not in self._begun_by:
            error = self._begin_error(group_id, request.owner)
        if error is not ErrorCode.NONE:
            return JoinReply(error=error, member_id=request.member_id)
        reply = await self._ask(group_id, request)
        assert isinstance(reply, JoinReply)
        return reply

    async def sync(self, group_id: str, request: SyncRequest) -> SyncReply:
        error = self._group_error(group_id)
        if error is not ErrorCode.NONE:
            return SyncReply(error=error)
        reply = await self._ask(group_id, request)
        assert isinstance(reply, SyncReply)
        return reply

    async def consumer_heartbeat(
        self, group_id: str, request: ConsumerHeartbeat
    ) -> ConsumerHeartbeatReply:
        """ConsumerGroupHeartbeat; without a member id, the member gets one."""
        is_join = request.epoch == JOIN_EPOCH
        error = self._group_error(group_id, is_join=is_join)
        if error is ErrorCode.NONE and is_join and group_id not in self._begun_by:
            error = self._begin_error(group_id, request.owner)
        if error is not ErrorCode.NONE:
            return ConsumerHeartbeatReply(error=error)
        reply = await self._ask(group_id, request)
        assert isinstance(reply, ConsumerHeartbeatReply)
        return reply

    def check_fetch(self, group_id: str, request: FetchCheck) -> ErrorCode:
        """Whether a member may be told the group's offsets."""
        return self._ask_code(group_id, request)

    async def delete(self, group_id: str) -> ErrorCode:
        if group_id not in self._groups:
            return self._group_error(group_id) or ErrorCode.GROUP_ID_NOT_FOUND
        reply = await self._ask(group_id, DeleteRequest())
        assert isinstance(reply, CodeReply)
        return reply.error

    def heartbeat(self, group_id: str, request: HeartbeatRequest) -> ErrorCode:
        return self._ask_code(group_id, request)

    def check_commit(self, group_id: str, request: CommitRequest) -> ErrorCode:
        """Whether an offset commit may be carried out; counts as a sign of life."""
        return self._ask_code(group_id, request)

    def leave(self, group_id: str, request: LeaveRequest) -> LeaveReply:
        error = self._group_error(group_id)
        if error is not ErrorCode.NONE:
            return LeaveReply(error=error)
        reply = self._ask_now(group_id, request)
        assert isinstance(reply, LeaveReply)
        return reply

    def describe(self, group_id: str) -> GroupDescription:
        """The group; one that does not exist is described as Dead."""
        group = self._groups.get(group_id)
        if group is not None:
            return group.describe()
        return GroupDescription(
            group_id=group_id,
            state=GroupState.DEAD,
            generation=0,
            protocol_type="",
            protocol_name="",
            leader="",
            members=(),
        )

    def describe_fully(self, group_id: str) -> ConsumerGroupDescription | None:
        """The group, if it is a consumer group."""
        group = self._groups.get(group_id)
        return None if group is None else group.describe_fully()

    def retention(self, group_id: str) -> OffsetRetention:
        """Which of the group's offsets can be forgotten, once they are old."""
        group = self._groups.get(group_id)
        if group is None:
            return OffsetRetention()
        return group.retention(self._empty_since_ms.get(group_id, 0))

    def group_ids(self) -> list[str]:
        return list(self._groups)

    def statistics(self) -> CoordinatorStatistics:
        return CoordinatorStatistics(
            group_count=len(self._groups),
            member_count=sum(group.member_count for group in self._groups.values()),
            idle_group_count=len(self._idle),
            parked_request_count=len(self._parked),
            held_bytes=self._shares.total_bytes,
            write_count=self._writer.busy_count if self._writer is not None else 0,
        )

    def tick(self) -> None:
        """Acts on every deadline that has passed. The timer calls it; tests may as well."""
        now_ms = self._clock.now_ms()
        while self._wakes and self._wakes[0][0] <= now_ms:
            wake_ms, group_id = heapq.heappop(self._wakes)
            if self._wake_of.get(group_id) != wake_ms:
                continue  # An earlier entry of the same group has replaced it.
            del self._wake_of[group_id]
            self._give(self._groups[group_id], Tick(), now_ms)
        self._arm()

    # Groups.

    def _group_error(self, group_id: str, *, is_join: bool = False) -> ErrorCode:
        if self._writer is None:
            return ErrorCode.NOT_COORDINATOR
        if not 0 < len(group_id) <= self._config.group_id_chars_max:
            return ErrorCode.INVALID_GROUP_ID
        if is_join and group_id not in self._groups and self._is_full and not self._idle:
            _log.warning("group_refused", group=group_id, limit=self._config.group_count_max)
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def _begin_error(self, group_id: str, owner: str) -> ErrorCode:
        """Whether a client may take another group into use."""
        limit = self._config.client_group_count_max
        if self._begun_count[owner] < limit:
            return ErrorCode.NONE
        _log.warning("group_refused", group=group_id, client=owner, limit=limit)
        return ErrorCode.GROUP_MAX_SIZE_REACHED

    def _count_use(self, group_id: str, *, owner: str | None) -> None:
        """The group is in use, begun by `owner` unless it was in use before; or, None, is not."""
        if owner is not None and group_id not in self._begun_by:
            self._begun_by[group_id] = owner
            self._begun_count[owner] += 1
        elif owner is None and group_id in self._begun_by:
            before = self._begun_by.pop(group_id)
            self._begun_count[before] -= 1
            if not self._begun_count[before]:
                del self._begun_count[before]

    @property
    def _is_full(self) -> bool:
        return len(self._groups) >= self._config.group_count_max

    def _make_room(self) -> None:
        """Forgets the group that has been idle for longest.

        Only a generation number is lost: offsets are kept elsewhere, and the ids of its former
        members are never given to others.
        """
        idle_id = next(iter(self._idle))
        erase = Erase(seq=WriteSeq(0), empty_since_ms=self._empty_since_ms.get(idle_id))
        self._forget(idle_id)
        assert self._writer is not None
        self._writer.write(idle_id, erase, lambda succeeded: None)
        _log.info("idle_group_forgotten", group=idle_id)

    def _keep(self, group: CoordinatedGroup, owner: str = "") -> None:
        """Files a group under what it is after an event, which the client `owner` caused."""
        group_id = group.group_id
        if group.state is GroupState.DEAD or group.is_blank:
            if self._groups.get(group_id) is group:
                self._forget(group_id)
            return
        # What was saved is kept even if the limit has been lowered since.
        if group_id not in self._groups and self._is_full and self._writer is not None:
            self._make_room()
        self._groups[group_id] = group
        if group.is_idle:
            self._idle.setdefault(group_id)
        else:
            self._idle.pop(group_id, None)
        self._count_use(group_id, owner=None if group.is_idle else owner)
        wake_ms = group.wake_ms
        if wake_ms is not None and wake_ms < self._wake_of.get(group_id, wake_ms + 1):
            self._wake_of[group_id] = wake_ms
            heapq.heappush(self._wakes, (wake_ms, group_id))
            if len(self._wakes) > 2 * len(self._wake_of) + _STALE_WAKE_COUNT_MAX:
                self._wakes = [(due_ms, name) for name, due_ms in self._wake_of.items()]
                heapq.heapify(self._wakes)

    def _forget(self, group_id: str) -> None:
        del self._groups[group_id]
        self._idle.pop(group_id, None)
        self._wake_of.pop(group_id, None)
        self._empty_since_ms.pop(group_id, None)
        self._count_use(group_id, owner=None)

    # Events and actions.

    def _start(self, group_id: str, request: GroupRequest) -> tuple[Token, CoordinatedGroup]:
        """Hands in a request; its future is done already where it need not wait.

        A group that does not exist is asked as well: an empty one knows what to answer, and is
        kept only if there is something to keep.
        """
        group = self._groups.get(group_id)
        if group is None:
            group = CoordinatedGroup(
                group_id,
                config=self._config,
                new_id=self._new_id,
                topics=self._topics,
                shares=self._shares,
            )
        token = Token(next(self._tokens))
        self._parked[token] = asyncio.get_running_loop().create_future()
        self._give(group, Asked(token=token, request=request), self._clock.now_ms())
        self._arm()
        return token, group

    async def _ask(self, group_id: str, request: GroupRequest) -> GroupReply:
        token, group = self._start(group_id, request)
        try:
            return await self._parked[token]
        except asyncio.CancelledError:
            self._notify(group, Abandoned(token=token))
            raise
        finally:
            del self._parked[token]

    def _ask_now(self, group_id: str, request: GroupRequest) -> GroupReply:
        token, _ = self._start(group_id, request)
        return self._parked.pop(token).result()

    def _ask_code(
        self, group_id: str, request: HeartbeatRequest | CommitRequest | FetchCheck
    ) -> ErrorCode:
        error = self._group_error(group_id)
        if error is not ErrorCode.NONE:
            return error
        reply = self._ask_now(group_id, request)
        assert isinstance(reply, CodeReply)
        return reply.error

    def _notify(self, group: CoordinatedGroup, event: Abandoned | WriteDone | WriteFailed) -> None:
        """Tells a group of something that was begun earlier, if the group still is the one."""
        if self._groups.get(group.group_id) is group:
            self._give(group, event, self._clock.now_ms())
            self._arm()

    def _give(self, group: CoordinatedGroup, event: GroupEvent, now_ms: int) -> None:
        before = group.state
        actions = group.handle(event, now_ms)
        if group.state is not before:
            _log.info(
                "group_changed",
                group=group.group_id,
                state=group.state.value,
                generation=group.generation,
                members=group.member_count,
            )
            if group.state is GroupState.EMPTY:
                self._empty_since_ms[group.group_id] = int(self._wall_clock.now_ms())
            else:
                self._empty_since_ms.pop(group.group_id, None)
        owner = ""
        if isinstance(event, Asked) and isinstance(event.request, JoinRequest | ConsumerHeartbeat):
            owner = event.request.owner
        self._keep(group, owner)
        self._carry_out(group, actions)

    def _carry_out(self, group: CoordinatedGroup, actions: list[GroupAction]) -> None:
        for action in actions:
            match action:
                case Reply():
                    future = self._parked.get(action.token)
                    if future is not None and not future.done():
                        future.set_result(action.body)
                case Persist() | Erase():
                    if self._writer is None:
                        raise Closed("the group coordinator is closed")
                    if isinstance(action, Persist) and not action.snapshot.members:
                        empty_since_ms = self._empty_since_ms.get(group.group_id, 0)
                        snapshot = replace(action.snapshot, empty_since_ms=empty_since_ms)
                        action = replace(action, snapshot=snapshot)
                    self._writer.write(group.group_id, action, self._report(group, action.seq))
                case _:
                    assert_never(action)

    def _report(self, group: CoordinatedGroup, seq: WriteSeq) -> Callable[[bool], None]:
        def report(succeeded: bool) -> None:
            self._notify(group, WriteDone(seq=seq) if succeeded else WriteFailed(seq=seq))

        return report

    # The timer.

    def _arm(self) -> None:
        """Sets the timer to the earliest deadline, unless it goes off before that anyway."""
        if not self._wakes or self._writer is None:
            return
        wake_ms = self._wakes[0][0]
        if self._timer is not None:
            if self._timer_ms <= wake_ms:
                return
            self._timer.cancel()
        # One more, because the loop's clock and ours do not tick at the same instant.
        delay_ms = max(wake_ms - self._clock.now_ms(), 0) + 1
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._ring)
        self._timer_ms = wake_ms

    def _ring(self) -> None:
        self._timer = None
        self.tick()
