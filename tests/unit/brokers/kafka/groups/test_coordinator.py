"""The driver: futures, the timer, the store, the limits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from firnmq.brokers.kafka.groups import (
    CommitRequest,
    GroupConfig,
    GroupCoordinator,
    GroupProtocol,
    GroupSnapshot,
    GroupState,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    Leaver,
    LeaveRequest,
    SyncRequest,
    decode_snapshot,
    encode_snapshot,
    random_member_id,
)
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from firnmq.errors import StorageFailed
from firnmq.testing.clock import FakeClock

SESSION_MS = 10_000


class FakeStore:
    """A GroupStore in memory that can be stopped, and can be told to fail."""

    def __init__(self) -> None:
        self.saved: dict[str, bytes] = {}
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.calls: list[str] = []

    async def save(self, group_id: str, snapshot: GroupSnapshot) -> None:
        self.calls.append(f"save {group_id} {snapshot.generation}")
        await self._work()
        self.saved[group_id] = encode_snapshot(snapshot)

    async def delete(self, group_id: str) -> None:
        self.calls.append(f"delete {group_id}")
        await self._work()
        self.saved.pop(group_id, None)

    async def load_all(self) -> Mapping[str, GroupSnapshot]:
        return {group_id: decode_snapshot(data) for group_id, data in self.saved.items()}

    async def _work(self) -> None:
        await self.gate.wait()
        if self.error is not None:
            raise self.error


class Node:
    """A coordinator with its store and clock, and short words for what clients do."""

    def __init__(self, coordinator: GroupCoordinator, store: FakeStore, clock: FakeClock) -> None:
        self.coordinator = coordinator
        self.store = store
        self.clock = clock

    def wait(self, ms: int) -> None:
        self.clock.advance(ms)
        self.coordinator.tick()

    async def join(self, member_id: str = "", *, group: str = "g", **changes: Any) -> JoinReply:
        fields: dict[str, Any] = {
            "protocol_type": "consumer",
            "protocols": (GroupProtocol(name="range", metadata=b"t"),),
            "session_timeout_ms": SESSION_MS,
        }
        return await self.coordinator.join(
            group, JoinRequest(member_id=member_id, **(fields | changes))
        )

    async def sync(self, joined: JoinReply, *, group: str = "g") -> tuple[ErrorCode, bytes]:
        request = SyncRequest(
            member_id=joined.member_id,
            generation=joined.generation,
            assignments={m.member_id: m.member_id.encode() for m in joined.members},
        )
        reply = await self.coordinator.sync(group, request)
        return reply.error, reply.assignment

    def heartbeat(self, joined: JoinReply, *, group: str = "g") -> ErrorCode:
        return self.coordinator.heartbeat(
            group, HeartbeatRequest(member_id=joined.member_id, generation=joined.generation)
        )

    def leave(self, joined: JoinReply, *, group: str = "g") -> None:
        leaver = Leaver(member_id=joined.member_id)
        reply = self.coordinator.leave(group, LeaveRequest(members=(leaver,)))
        assert reply.members[0].error is ErrorCode.NONE

    async def settled(self, *, group: str = "g") -> JoinReply:
        """A group with one member, Stable."""
        joined = await self.join(group=group)
        error, _ = await self.sync(joined, group=group)
        assert error is ErrorCode.NONE
        return joined

    def state(self, group: str = "g") -> GroupState:
        return self.coordinator.describe(group).state


@asynccontextmanager
async def node(store: FakeStore | None = None, **limits: int) -> AsyncIterator[Node]:
    store = store or FakeStore()
    clock = FakeClock()
    ids = itertools.count(1)
    coordinator = GroupCoordinator(
        store,
        config=GroupConfig(initial_rebalance_delay_ms=0, **limits),
        clock=clock,
        new_id=lambda prefix: f"m{next(ids)}",
    )
    async with coordinator:
        yield Node(coordinator, store, clock)


async def begun(work: Awaitable[Any]) -> asyncio.Task[Any]:
    """Starts the work and lets it come to where it waits."""
    task = asyncio.ensure_future(work)
    await turns()
    return task


async def turns() -> None:
    """Lets everything that can run, run."""
    for _ in range(10):
        turn = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(turn.set_result, None)
        await turn


async def test_two_clients_share_a_group() -> None:
    async with node() as n:
        first = await n.settled()
        second = await begun(n.join())
        assert n.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
        leader = await n.join(first.member_id)
        follower = await second
        waiting = await begun(n.sync(follower))
        assert await n.sync(leader) == (ErrorCode.NONE, b"m1")
        assert await waiting == (ErrorCode.NONE, b"m2")
        assert n.coordinator.statistics().member_count == 2
        assert n.coordinator.statistics().parked_request_count == 0


async def test_sessions_expire_by_the_clock() -> None:
    async with node() as n:
        await n.settled(group="one")
        n.wait(SESSION_MS // 2)
        kept = await n.settled(group="two")
        n.wait(SESSION_MS // 2)
        assert n.state("one") is GroupState.EMPTY
        assert n.state("two") is GroupState.STABLE
        assert n.heartbeat(kept, group="two") is ErrorCode.NONE


async def test_the_timer_goes_off_by_itself() -> None:
    store = FakeStore()
    config = GroupConfig(session_timeout_min_ms=1, initial_rebalance_delay_ms=0)
    async with GroupCoordinator(store, config=config) as coordinator:
        n = Node(coordinator, store, FakeClock())
        missed = await n.join(session_timeout_ms=20)
        await n.sync(missed)
        # Nobody is heard from and nothing is asked; the newcomer waits for the timer alone.
        newcomer = await asyncio.wait_for(n.join(), timeout=60)
        assert [m.member_id for m in newcomer.members] == [newcomer.member_id]


async def test_a_dropped_connection_leaves_its_member_until_the_session_ends() -> None:
    async with node() as n:
        first = await n.settled()
        dropped = await begun(n.join())
        dropped.cancel()
        again = await begun(n.join(first.member_id))
        assert not again.done()
        assert n.coordinator.statistics().member_count == 2
        n.wait(SESSION_MS)
        reply = await again
        assert [m.member_id for m in reply.members] == [first.member_id]
        with pytest.raises(asyncio.CancelledError):
            await dropped


async def test_a_failing_store_is_told_to_those_who_wait_and_changes_nothing() -> None:
    async with node() as n:
        joined = await n.join()
        n.store.error = StorageFailed("groups", OSError("broken"))
        assert await n.sync(joined) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, b"")
        assert n.state() is GroupState.COMPLETING
        n.store.error = None
        assert await n.join(joined.member_id) == joined
        assert await n.sync(joined) == (ErrorCode.NONE, b"m1")


async def test_a_store_that_hangs_is_given_up_on() -> None:
    async with node(store_timeout_ms=1) as n:
        joined = await n.join()
        n.store.gate.clear()
        assert await n.sync(joined) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, b"")


async def test_a_defect_of_the_store_ends_the_coordinator_and_answers_everyone() -> None:
    waiting: list[asyncio.Future[tuple[ErrorCode, bytes]]] = []

    async def run() -> None:
        async with node() as n:
            joined = await n.join()
            n.store.error = ZeroDivisionError("a defect")
            waiting.append(asyncio.ensure_future(n.sync(joined)))
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await run()
    assert caught.group_contains(ZeroDivisionError)
    assert await waiting[0] == (ErrorCode.NOT_COORDINATOR, b"")


async def test_writes_of_a_group_keep_their_order_and_only_the_newest_is_kept() -> None:
    async with node() as n:
        joined = await n.join()
        n.store.gate.clear()
        sync = await begun(n.sync(joined))
        assert n.coordinator.statistics().write_count == 1
        # While the first save is under way the member leaves, and another comes and goes.
        n.leave(joined)
        assert await sync == (ErrorCode.UNKNOWN_MEMBER_ID, b"")
        n.leave(await n.join())
        n.store.gate.set()
        await turns()
        assert n.store.calls == ["save g 1", "save g 4"]
        assert decode_snapshot(n.store.saved["g"]).generation == 4


async def test_a_restarted_node_goes_on_with_what_was_saved() -> None:
    async with node() as n:
        joined = await n.settled()
        store = n.store
    async with node(store) as n:
        assert n.state() is GroupState.STABLE
        assert n.heartbeat(joined) is ErrorCode.NONE
        n.wait(SESSION_MS)
        assert n.state() is GroupState.EMPTY


async def test_a_lowered_limit_does_not_lose_saved_groups() -> None:
    async with node() as n:
        for group in ("one", "two", "three"):
            await n.settled(group=group)
        store = n.store
    async with node(store, group_count_max=1) as n:
        assert sorted(n.coordinator.group_ids()) == ["one", "three", "two"]


async def test_closing_answers_parked_requests() -> None:
    async with node() as n:
        await n.settled()
        parked = await begun(n.join())
    assert (await parked).error is ErrorCode.NOT_COORDINATOR
    assert (await n.join()).error is ErrorCode.NOT_COORDINATOR


async def test_deletion_is_durable_before_it_is_answered() -> None:
    async with node() as n:
        joined = await n.settled()
        assert await n.coordinator.delete("g") is ErrorCode.NON_EMPTY_GROUP
        n.leave(joined)
        n.store.error = OSError("broken")
        assert await n.coordinator.delete("g") is ErrorCode.COORDINATOR_NOT_AVAILABLE
        n.store.error = None
        assert await n.coordinator.delete("g") is ErrorCode.NONE
        assert n.store.saved == {}
        assert n.coordinator.group_ids() == []
        assert await n.coordinator.delete("g") is ErrorCode.GROUP_ID_NOT_FOUND
        assert n.state() is GroupState.DEAD
        assert (await n.join()).generation == 1


async def test_asking_about_a_group_does_not_make_it() -> None:
    async with node() as n:
        stranger = JoinReply(error=ErrorCode.NONE, member_id="x", generation=1)
        assert n.heartbeat(stranger) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await n.sync(stranger) == (ErrorCode.UNKNOWN_MEMBER_ID, b"")
        assert n.coordinator.check_commit("g", CommitRequest()) is ErrorCode.NONE
        assert (await n.join("x")).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert n.coordinator.group_ids() == []


async def test_a_group_that_was_only_promised_to_is_forgotten() -> None:
    async with node() as n:
        promised = await n.join(requires_known_member_id=True)
        assert promised.error is ErrorCode.MEMBER_ID_REQUIRED
        assert n.coordinator.group_ids() == ["g"]
        n.wait(SESSION_MS)
        assert n.coordinator.group_ids() == []


async def test_group_names_are_checked() -> None:
    async with node() as n:
        assert (await n.join(group="")).error is ErrorCode.INVALID_GROUP_ID
        assert (await n.join(group="x" * 5_000)).error is ErrorCode.INVALID_GROUP_ID
        assert await n.coordinator.delete("") is ErrorCode.INVALID_GROUP_ID


async def test_at_the_limit_the_group_idle_for_longest_makes_room() -> None:
    async with node(group_count_max=3) as n:
        for group in ("one", "two"):
            n.leave(await n.settled(group=group), group=group)
        await n.settled(group="busy")
        assert (await n.join("x", group="new")).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert len(n.coordinator.group_ids()) == 3, "a refused join displaces nobody"
        await n.settled(group="new")
        assert n.coordinator.group_ids() == ["two", "busy", "new"]
        await turns()
        assert sorted(n.store.saved) == ["busy", "new", "two"]
        await n.settled(group="two")
        refused = await n.join(group="too many")
        assert refused.error is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_forgotten_group_is_not_brought_back_by_a_late_write() -> None:
    async with node(group_count_max=1) as n:
        joined = await n.settled(group="old")
        n.store.gate.clear()
        n.leave(joined, group="old")
        await turns()
        await n.join(group="new")
        n.store.gate.set()
        await turns()
        assert n.coordinator.group_ids() == ["new"]
        assert n.store.saved == {}


async def test_groups_that_come_and_go_leave_no_deadlines_behind() -> None:
    async with node() as n:
        for number in range(3_000):
            group = f"g{number}"
            promised = await n.join(group=group, requires_known_member_id=True)
            n.leave(promised, group=group)
        assert len(n.coordinator._wakes) <= 1_001
        assert n.coordinator.group_ids() == []


def test_member_ids_are_unlike_each_other_and_fit_the_wire() -> None:
    ids = {random_member_id("x" * 32_000) for _ in range(100)}
    assert len(ids) == 100
    assert max(map(len, ids)) < 300
