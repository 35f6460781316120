"""The driver: futures, the timer, the store, the limits."""

from __future__ import annotations

import asyncio
import itertools
import threading
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
from tests.unit.brokers.kafka.groups.fake_topics import FakeTopics

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

    async def delete(self, group_id: str, empty_since_ms: int | None = None) -> None:
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
        FakeTopics(),
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
    async with GroupCoordinator(store, FakeTopics(), config=config) as coordinator:
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


class ThreadStore(FakeStore):
    """Saves in threads, as a real store does: a caller that gives up does not stop them."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write_first = threading.Event()
        self.written = [threading.Event(), threading.Event()]
        self._count = itertools.count()

    async def save(self, group_id: str, snapshot: GroupSnapshot) -> None:
        number = next(self._count)

        def write() -> None:
            if number == 0:
                assert self.may_write_first.wait(60)
            self.saved[group_id] = encode_snapshot(snapshot)
            self.written[number].set()

        await asyncio.get_running_loop().run_in_executor(None, write)


async def test_a_save_after_its_time_out_does_not_overtake_a_newer_one() -> None:
    """A thread that hangs in the store would write an old snapshot over a newer one."""
    store = ThreadStore()
    async with node(store, store_timeout_ms=10) as n:
        joined = await n.join()
        assert await n.sync(joined) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, b"")
        # The assignments are made again, by a leader that knows better.
        request = SyncRequest(
            member_id="m1", generation=joined.generation, assignments={"m1": b"newer"}
        )
        sync = await begun(n.coordinator.sync("g", request))
        store.may_write_first.set()
        for written in store.written:
            assert await asyncio.to_thread(written.wait, 60)
        (member,) = decode_snapshot(store.saved["g"]).members
        assert member.assignment == b"newer"
        await sync


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


# Promises lapse, and nobody fills the memory for others -------------------------------------------

LONG_MS = 1_800_000
"""The longest session that a client may ask for."""
PROMISE_MS = 20_000
LARGE = (GroupProtocol(name="range", metadata=bytes(1_000)),)


async def test_joins_that_nobody_completes_lapse_in_seconds() -> None:
    async with node(group_count_max=100) as n:
        times = {"session_timeout_ms": LONG_MS, "rebalance_timeout_ms": LONG_MS}
        for number in range(50):
            promised = await n.join(
                group=f"promised-{number}", requires_known_member_id=True, **times
            )
            assert promised.error is ErrorCode.MEMBER_ID_REQUIRED
            await n.join(group=f"half-made-{number}", **times)
        assert (await n.join(group="mine")).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        n.wait(PROMISE_MS)
        assert (await n.join(group="mine")).error is ErrorCode.NONE
        assert n.coordinator.statistics().member_count == 1


async def test_what_a_client_brought_is_released_when_it_is_gone() -> None:
    async with node() as n:
        joined = await n.settled()
        before = n.coordinator.statistics().held_bytes
        times = {"session_timeout_ms": LONG_MS, "rebalance_timeout_ms": LONG_MS}
        parked = [await begun(n.join(protocols=LARGE, **times)) for _ in range(5)]
        assert n.coordinator.statistics().held_bytes > before + 5_000
        for task in parked:
            task.cancel()
        await turns()
        n.wait(PROMISE_MS // 4)
        assert n.heartbeat(joined) is ErrorCode.REBALANCE_IN_PROGRESS
        rejoin = await begun(n.join(joined.member_id))
        n.wait(PROMISE_MS)
        assert (await rejoin).error is ErrorCode.NONE
        assert n.coordinator.statistics().member_count == 1
        assert n.coordinator.statistics().held_bytes <= before


async def test_a_member_with_an_assignment_has_its_whole_session() -> None:
    async with node() as n:
        joined = await n.join(session_timeout_ms=LONG_MS, rebalance_timeout_ms=LONG_MS)
        await n.sync(joined)
        newcomer = await begun(n.join())
        rejoin = await begun(n.join(joined.member_id, session_timeout_ms=LONG_MS))
        assert (await rejoin).error is (await newcomer).error is ErrorCode.NONE
        n.wait(PROMISE_MS)
        members = n.coordinator.describe("g").members
        assert joined.member_id in [member.member_id for member in members]


@pytest.mark.parametrize(
    "bytes_of_a_member",
    [
        {"client_id": "c" * 30_000},
        {"instance_id": "i" * 30_000},
        {"protocols": (GroupProtocol(name="", metadata=b""),) * 240},
    ],
    ids=["client id", "instance id", "empty protocols"],
)
async def test_everything_that_a_member_keeps_in_memory_counts(
    bytes_of_a_member: dict[str, Any],
) -> None:
    async with node(client_bytes_max=100_000) as n:
        codes = [
            (await n.join(group=f"g{number}", **bytes_of_a_member)).error for number in range(4)
        ]
        assert codes == [ErrorCode.NONE] * 3 + [ErrorCode.GROUP_MAX_SIZE_REACHED]


async def test_a_member_alone_is_limited_as_well() -> None:
    async with node() as n:
        many = (GroupProtocol(name="", metadata=b""),) * 10_000
        assert (await n.join(protocols=many)).error is ErrorCode.INVALID_REQUEST
        assert (await n.join(protocol_type="t" * 256)).error is ErrorCode.INVALID_REQUEST
        assert n.coordinator.statistics().held_bytes == 0


async def test_bytes_of_all_groups_and_of_one_client_have_limits() -> None:
    async with node(total_bytes_max=10_900, client_bytes_max=6_600) as n:
        joins = [
            await begun(n.join(group=f"g{number}", protocols=LARGE, owner="greedy"))
            for number in range(4)
        ]
        codes = [(await join).error for join in joins]
        assert codes == [ErrorCode.NONE] * 3 + [ErrorCode.GROUP_MAX_SIZE_REACHED]
        other = await n.join(group="h0", protocols=LARGE, owner="other")
        assert other.error is ErrorCode.NONE, "one client does not fill it for others"
        # Assignments count, for the client that brings them.
        request = SyncRequest(
            member_id=other.member_id, generation=1, assignments={other.member_id: bytes(3_000)}
        )
        reply = await n.coordinator.sync("h0", request)
        assert reply.error is ErrorCode.GROUP_MAX_SIZE_REACHED
        last = await n.join(group="h1", protocols=LARGE, owner="third")
        assert last.error is ErrorCode.NONE
        full = await n.join(group="h2", protocols=LARGE, owner="fourth")
        assert full.error is ErrorCode.GROUP_MAX_SIZE_REACHED
        again = await n.join(last.member_id, group="h1", protocols=LARGE, owner="third")
        assert again.error is ErrorCode.NONE, "who is in may join again"
        n.leave(other, group="h0")
        assert (await n.join(group="h2", protocols=LARGE, owner="fourth")).error is ErrorCode.NONE


async def test_promised_ids_count_until_they_are_used_left_or_lapse() -> None:
    async with node(client_bytes_max=5_000) as n:
        promised = [await n.join(requires_known_member_id=True, owner="me") for _ in range(5)]
        codes = [reply.error for reply in promised]
        required = ErrorCode.MEMBER_ID_REQUIRED
        assert codes == [required] * 4 + [ErrorCode.GROUP_MAX_SIZE_REACHED]
        joined = await begun(n.join(promised[0].member_id, owner="me"))
        assert not joined.done(), "a promised id may be used although the share is full"
        n.leave(promised[1])
        assert (await n.join(requires_known_member_id=True, owner="me")).error is required
        joined.cancel()


async def test_a_restart_does_not_forget_whom_a_group_counts_for() -> None:
    store = FakeStore()
    limits = {"client_group_count_max": 2, "client_bytes_max": 5_000}
    async with node(store, **limits) as n:
        for number in range(2):
            joined = await n.join(group=f"g{number}", protocols=LARGE, owner="greedy")
            await n.sync(joined, group=f"g{number}")
    async with node(store, **limits) as n:
        refused = await n.join(group="g2", owner="greedy")
        assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED, "two groups are in use"
        refused = await n.join(group="h", protocols=LARGE, owner="greedy")
        assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert (await n.join(group="h", protocols=LARGE, owner="other")).error is ErrorCode.NONE


async def test_one_client_has_a_limited_number_of_groups_in_use() -> None:
    async with node(client_group_count_max=2) as n:
        joined = [await n.join(group=f"g{number}", owner="greedy") for number in range(2)]
        refused = await n.join(group="g2", owner="greedy")
        assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert (await n.join(group="h", owner="other")).error is ErrorCode.NONE
        second = await begun(n.join(group="g0", owner="greedy"))
        assert not second.done(), "another member of a group in use"
        second.cancel()
        n.leave(joined[1], group="g1")
        assert (await n.join(group="g2", owner="greedy")).error is ErrorCode.NONE
