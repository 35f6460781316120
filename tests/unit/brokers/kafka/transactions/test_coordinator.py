"""The driver: futures, order of appends and markers, what is loaded and what is retried."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

import pytest

from firnmq.adapter import CommittedOffset, OffsetManager, OffsetRows, OffsetStorageManager
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from firnmq.brokers.kafka.transactions import (
    AddGroupRequest,
    AddPartitionsRequest,
    Appends,
    CommitOffsetsRequest,
    EndRequest,
    InitRequest,
    KvTransactionStore,
    TransactionConfig,
    TransactionCoordinator,
    TransactionPartition,
    TransactionSnapshot,
    TransactionState,
)
from firnmq.disk import KeyValueStore
from firnmq.errors import ShardNotFound, StorageFailed
from firnmq.testing import FakeClock

PARTITIONS = (TransactionPartition("t", "shard_0"), TransactionPartition("t", "shard_1"))
QUICK = TransactionConfig(retry_ms=1, end_wait_ms=60_000)


class Happenings:
    """Lets a test wait until something it can see has happened."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def note(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


class DictStore:
    """A TransactionStore in memory that fails when told."""

    def __init__(self, happenings: Happenings) -> None:
        self._happenings = happenings
        self.saved: dict[str, TransactionSnapshot] = {}
        self.commits: dict[str, dict[str, CommittedOffset]] = {}
        self.failures = 0

    async def save(
        self,
        transactional_id: str,
        snapshot: TransactionSnapshot,
        commits: Mapping[str, Mapping[str, CommittedOffset]],
    ) -> None:
        if self.failures:
            self.failures -= 1
            raise StorageFailed("store", OSError("full"))
        self.saved[transactional_id] = snapshot
        for group, offsets in commits.items():
            self.commits.setdefault(group, {}).update(offsets)
        self._happenings.note()

    def has(self, state: TransactionState) -> bool:
        return "t" in self.saved and self.saved["t"].state is state

    async def load_all(self) -> dict[str, TransactionSnapshot]:
        return dict(self.saved)

    async def delete(self, transactional_id: str) -> None:
        self.saved.pop(transactional_id, None)


class Markers:
    """A MarkerWriter that remembers, fails when told and waits if it has to."""

    def __init__(self, happenings: Happenings) -> None:
        self._happenings = happenings
        self.asked_count = 0
        self.written: list[tuple[str, int, int, bool]] = []
        self.gone: set[str] = set()
        self.failures = 0
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def write_marker(
        self, partition: TransactionPartition, producer_id: int, epoch: int, *, is_commit: bool
    ) -> None:
        self.asked_count += 1
        self._happenings.note()
        await self.may_write.wait()
        if partition.shard in self.gone:
            raise ShardNotFound(partition.shard)
        if self.failures:
            self.failures -= 1
            raise StorageFailed(partition.shard, OSError("full"))
        self.written.append((partition.shard, producer_id, epoch, is_commit))


class Lab:
    def __init__(self, config: TransactionConfig = QUICK) -> None:
        self.happenings = Happenings()
        self.store = DictStore(self.happenings)
        self.markers = Markers(self.happenings)
        self.clock = FakeClock()
        self.config = config
        self._ids = iter(range(10, 1_000))

    async def take(self) -> int:
        await asyncio.to_thread(int)  # As where numbers have to be reserved first.
        return next(self._ids)

    def coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(
            self.store, self.markers, self.take, clock=self.clock, config=self.config
        )


@pytest.fixture
def lab() -> Lab:
    return Lab()


async def begun(
    coordinator: TransactionCoordinator, name: str = "t", group: str = "g"
) -> tuple[int, int]:
    """A producer with both partitions and a group in its transaction."""
    reply = await coordinator.init(name, InitRequest(timeout_ms=1_000))
    assert reply.error is ErrorCode.NONE
    producer_id, epoch = reply.producer_id, reply.epoch
    added = await coordinator.add_partitions(
        name, AddPartitionsRequest(producer_id=producer_id, epoch=epoch, partitions=PARTITIONS)
    )
    assert added is ErrorCode.NONE
    await coordinator.add_group(
        name, AddGroupRequest(producer_id=producer_id, epoch=epoch, group=group)
    )
    await coordinator.commit_offsets(
        name,
        CommitOffsetsRequest(
            producer_id=producer_id,
            epoch=epoch,
            group=group,
            offsets={"in": CommittedOffset(offset=7, committed_ms=0)},
        ),
    )
    return producer_id, epoch


def end(producer: tuple[int, int], *, is_commit: bool = True) -> EndRequest:
    return EndRequest(producer_id=producer[0], epoch=producer[1], is_commit=is_commit)


async def test_a_commit_writes_markers_and_offsets(lab: Lab) -> None:
    async with lab.coordinator() as coordinator:
        producer = await begun(coordinator)
        pending = coordinator.pending_offsets("g")
        assert [list(offsets) for offsets in pending] == [["in"]]
        assert not coordinator.pending_offsets("other")
        assert coordinator.statistics().ongoing_count == 1
        assert await coordinator.end("t", end(producer)) is ErrorCode.NONE
        assert sorted(lab.markers.written) == [
            ("shard_0", 10, 0, True),
            ("shard_1", 10, 0, True),
        ]
        assert lab.store.commits["g"]["in"].offset == 7
        assert not coordinator.pending_offsets("g")
        assert [list(offsets) for offsets in pending] == [["in"]]  # As it was when asked for.
    assert lab.store.saved["t"].state is TransactionState.COMPLETE_COMMIT


async def test_pending_offsets_of_a_group_are_found_without_looking_at_other_transactions() -> None:
    lab = Lab()
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += 1

    async with lab.coordinator() as coordinator:
        for number in range(50):
            await begun(coordinator, f"id-{number}", f"group-{number}")
        sys.setprofile(count)
        pending = coordinator.pending_offsets("group-7")
        sys.setprofile(None)
        assert [list(offsets) for offsets in pending] == [["in"]]
    assert calls < 10


async def test_what_was_decided_is_finished_by_the_next_process(lab: Lab) -> None:
    lab.markers.may_write.clear()
    async with lab.coordinator() as coordinator:
        producer = await begun(coordinator)
        ending = asyncio.ensure_future(coordinator.end("t", end(producer, is_commit=False)))
        await lab.happenings.until(lambda: lab.markers.asked_count > 0)
        ending.cancel()
    assert lab.store.saved["t"].state is TransactionState.PREPARE_ABORT
    assert lab.markers.written == []
    lab.markers.may_write.set()
    async with lab.coordinator() as coordinator:
        await lab.happenings.until(lambda: lab.store.has(TransactionState.COMPLETE_ABORT))
        assert len(lab.markers.written) == 2
        assert await coordinator.end("t", end(producer, is_commit=False)) is ErrorCode.NONE
    assert lab.store.commits == {}


async def test_markers_do_not_overtake_batches(lab: Lab) -> None:
    """1. A batch is on its way to its shard, 2. the transaction ends, 3. the batch arrives."""
    async with lab.coordinator() as coordinator:
        producer = await begun(coordinator)
        judged = coordinator.judge_append("t", *producer, "shard_0")
        assert isinstance(judged, Appends)
        with judged:
            ending = asyncio.ensure_future(coordinator.end("t", end(producer)))
            await lab.happenings.until(lambda: lab.store.has(TransactionState.PREPARE_COMMIT))
            done, _ = await asyncio.wait([ending], timeout=0.05)
            assert not done
            assert lab.markers.asked_count == 0
            late = coordinator.judge_append("t", *producer, "shard_0")
            assert late is ErrorCode.INVALID_TXN_STATE
        assert await ending is ErrorCode.NONE
        assert len(lab.markers.written) == 2


async def test_writes_without_a_transaction_are_refused(lab: Lab) -> None:
    async with lab.coordinator() as coordinator:
        unknown = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert coordinator.judge_append(None, 1, 0, "shard_0") is unknown
        assert coordinator.judge_append("nobody", 1, 0, "shard_0") is unknown
        assert await coordinator.end("nobody", end((1, 0))) is unknown
        assert coordinator.statistics().id_count == 0


async def test_markers_are_tried_until_they_are_written(lab: Lab) -> None:
    lab.markers.failures = 3
    lab.markers.gone = {"shard_1"}
    async with lab.coordinator() as coordinator:
        producer = await begun(coordinator)
        assert await coordinator.end("t", end(producer)) is ErrorCode.NONE
    assert lab.markers.written == [("shard_0", 10, 0, True)]


async def test_a_decision_outlasts_a_store_that_fails(lab: Lab) -> None:
    async with lab.coordinator() as coordinator:
        producer = await begun(coordinator)
        lab.store.failures = 1
        first = await coordinator.end("t", end(producer))
        assert first is ErrorCode.COORDINATOR_NOT_AVAILABLE
        lab.clock.advance(QUICK.retry_ms)
        coordinator.tick()
        await lab.happenings.until(lambda: lab.store.has(TransactionState.COMPLETE_COMMIT))
        assert await coordinator.end("t", end(producer)) is ErrorCode.NONE
        assert await coordinator.end("t", end(producer, is_commit=False)) is (
            ErrorCode.INVALID_TXN_STATE
        )


async def test_an_end_does_not_wait_for_ever(lab: Lab) -> None:
    lab = Lab(TransactionConfig(end_wait_ms=1))
    lab.markers.may_write.clear()
    async with lab.coordinator() as coordinator:
        producer = await begun(coordinator)
        assert await coordinator.end("t", end(producer)) is ErrorCode.NONE
        assert coordinator.statistics().prepared_count == 1


async def test_a_time_out_aborts(lab: Lab) -> None:
    async with lab.coordinator() as coordinator:
        producer = await begun(coordinator)
        lab.clock.advance(1_000)
        coordinator.tick()
        await lab.happenings.until(lambda: lab.store.has(TransactionState.COMPLETE_ABORT))
        assert {marker[2:] for marker in lab.markers.written} == {(1, False)}
        assert await coordinator.end("t", end(producer)) is ErrorCode.PRODUCER_FENCED
        judged = coordinator.judge_append("t", *producer, "shard_0")
        assert judged is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_clock_that_is_set_back_does_not_delay_the_time_out(
    lab: Lab, restarts: bool
) -> None:
    async with lab.coordinator() as coordinator:
        await begun(coordinator)
        lab.clock.set_back(3_600_000)
        if not restarts:
            lab.clock.advance(1_000)
            coordinator.tick()
            await lab.happenings.until(lambda: lab.store.has(TransactionState.COMPLETE_ABORT))
    async with lab.coordinator() as coordinator:
        lab.clock.advance(1_000)
        coordinator.tick()
        await lab.happenings.until(lambda: lab.store.has(TransactionState.COMPLETE_ABORT))


async def test_names_and_their_number_are_bounded() -> None:
    lab = Lab(TransactionConfig(id_chars_max=3, id_count_max=1))
    async with lab.coordinator() as coordinator:
        request = InitRequest(timeout_ms=1_000)
        assert (await coordinator.init("", request)).error is ErrorCode.INVALID_REQUEST
        assert (await coordinator.init("long", request)).error is ErrorCode.INVALID_REQUEST
        assert (await coordinator.init("a", request, "", "open")).error is ErrorCode.NONE
        assert (await coordinator.init("b", request)).error is ErrorCode.POLICY_VIOLATION
        assert (await coordinator.init("a", request)).epoch == 1


async def test_the_store_keeps_transactions_and_offsets_in_one_write(tmp_path: Path) -> None:
    kv = KeyValueStore(tmp_path / "db")
    store = KvTransactionStore(OffsetRows(kv))
    snapshot = TransactionSnapshot(
        producer_id=1, epoch=2, timeout_ms=3, partitions=PARTITIONS, groups=("g",)
    )
    committed = CommittedOffset(offset=5, metadata="m", committed_ms=6, leader_epoch=7)
    await store.save("t", snapshot, {"g": {"in": committed}})
    await store.save("ü", snapshot, {})
    kv.close()
    kv = KeyValueStore(tmp_path / "db")
    store = KvTransactionStore(OffsetRows(kv))
    assert await store.load_all() == {"t": snapshot, "ü": snapshot}
    offsets = OffsetManager(OffsetStorageManager(OffsetRows(kv)), FakeClock())
    assert offsets.committed("g") == {"in": committed}
    await store.delete("t")
    await store.delete("never there")
    assert list(await store.load_all()) == ["ü"]
    kv.close()


# Ids that nobody uses -----------------------------------------------------------------------------


async def init(
    coordinator: TransactionCoordinator, name: str, owner: str = "", connection: str | None = None
) -> ErrorCode:
    request = InitRequest(timeout_ms=1_000)
    return (await coordinator.init(name, request, owner, connection)).error


async def settled(coordinator: TransactionCoordinator, id_count: int) -> None:
    """Lets deletions come to their end."""
    for _ in range(1_000):
        if coordinator.statistics().id_count == id_count:
            return
        await asyncio.to_thread(int)
    raise AssertionError(f"{coordinator.statistics().id_count} ids are left")


async def test_in_a_full_share_the_oldest_id_without_a_transaction_gives_way() -> None:
    lab = Lab(TransactionConfig(retry_ms=1, client_unused_id_count_max=3))
    async with lab.coordinator() as coordinator:
        assert await init(coordinator, "early", "modest") is ErrorCode.NONE
        for number in range(50):
            assert await init(coordinator, f"t{number}", "greedy") is ErrorCode.NONE
        await settled(coordinator, 4)
        assert sorted(lab.store.saved) == ["early", "t47", "t48", "t49"]
    async with lab.coordinator() as coordinator:
        assert await init(coordinator, "t50", "greedy") is ErrorCode.NONE
        await settled(coordinator, 4)
        assert sorted(lab.store.saved) == ["early", "t48", "t49", "t50"], (
            "a restart changes nothing"
        )


async def test_an_id_that_had_a_transaction_never_gives_way() -> None:
    lab = Lab(TransactionConfig(retry_ms=1, client_unused_id_count_max=1, id_count_max=2))
    async with lab.coordinator() as coordinator:
        producer = await begun(coordinator, "used")
        await coordinator.end("used", end(producer))
        assert await init(coordinator, "used") is ErrorCode.NONE, "Empty, as a new one is"
    async with lab.coordinator() as coordinator:
        for name in ("a", "b", "c"):
            assert await init(coordinator, name) is ErrorCode.NONE
            await settled(coordinator, 2)
        assert sorted(lab.store.saved) == ["c", "used"]
        producer = await begun(coordinator, "c")
        await coordinator.end("c", end(producer))
        assert await init(coordinator, "d") is ErrorCode.POLICY_VIOLATION
        assert sorted(lab.store.saved) == ["c", "used"]


async def test_an_id_of_an_open_connection_never_gives_way() -> None:
    lab = Lab(TransactionConfig(retry_ms=1, client_unused_id_count_max=2))
    async with lab.coordinator() as coordinator:
        assert await init(coordinator, "a", connection="one") is ErrorCode.NONE
        assert await init(coordinator, "b", connection="two") is ErrorCode.NONE
        assert await init(coordinator, "c") is ErrorCode.POLICY_VIOLATION
        assert await init(coordinator, "a", connection="three") is ErrorCode.NONE
        coordinator.disconnected("one")
        assert await init(coordinator, "c") is ErrorCode.POLICY_VIOLATION, "three has it too"
        coordinator.disconnected("three")
        coordinator.disconnected("never there")
        assert await init(coordinator, "c") is ErrorCode.NONE
        await settled(coordinator, 2)
        assert sorted(lab.store.saved) == ["b", "c"]
        assert await init(coordinator, "d", connection="two") is ErrorCode.NONE
        await settled(coordinator, 2)
        assert await init(coordinator, "e") is ErrorCode.NONE
        await settled(coordinator, 2)
        assert sorted(lab.store.saved) == ["d", "e"], "a connection holds only its newest id"


async def test_a_full_table_takes_from_the_client_with_most_unused_ids() -> None:
    lab = Lab(TransactionConfig(retry_ms=1, id_count_max=5))
    async with lab.coordinator() as coordinator:
        assert await init(coordinator, "early", "modest") is ErrorCode.NONE
        for number in range(4):
            assert await init(coordinator, f"t{number}", "greedy") is ErrorCode.NONE
        for name in ("x", "y"):
            assert await init(coordinator, name, name) is ErrorCode.NONE
            await settled(coordinator, 5)
        assert sorted(lab.store.saved) == ["early", "t2", "t3", "x", "y"]


async def test_a_producer_whose_id_gave_way_is_told_and_can_begin_again() -> None:
    lab = Lab(TransactionConfig(retry_ms=1, client_unused_id_count_max=1))
    async with lab.coordinator() as coordinator:
        first = await coordinator.init("a", InitRequest(timeout_ms=1_000))
        assert await init(coordinator, "b") is ErrorCode.NONE
        await settled(coordinator, 1)
        request = AddPartitionsRequest(
            producer_id=first.producer_id, epoch=first.epoch, partitions=PARTITIONS
        )
        told = await coordinator.add_partitions("a", request)
        assert told is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        again = await coordinator.init("a", InitRequest(timeout_ms=1_000))
        assert again.error is ErrorCode.NONE
        assert again.producer_id != first.producer_id


async def test_a_restart_does_not_forget_who_began_an_id() -> None:
    lab = Lab(TransactionConfig(retry_ms=1, client_id_count_max=2, id_count_max=4))
    for _ in range(3):
        async with lab.coordinator() as coordinator:
            for name in ("a", "b"):
                assert await init(coordinator, name, "greedy", name) is ErrorCode.NONE
            assert await init(coordinator, "c", "greedy") is ErrorCode.POLICY_VIOLATION
    async with lab.coordinator() as coordinator:
        assert await init(coordinator, "d", "modest") is ErrorCode.NONE


async def test_requests_at_the_same_time_do_not_exceed_the_limits_together() -> None:
    lab = Lab(TransactionConfig(retry_ms=1, client_id_count_max=2, id_count_max=3))
    async with lab.coordinator() as coordinator:
        names = [f"t{number}" for number in range(5)]
        codes = await asyncio.gather(*(init(coordinator, name, "greedy", name) for name in names))
        assert codes.count(ErrorCode.NONE) == 2
        codes = await asyncio.gather(*(init(coordinator, f"of-{name}", name) for name in names))
        assert codes.count(ErrorCode.NONE) == 1
        codes = await asyncio.gather(*(init(coordinator, "t0", "greedy") for _ in names))
        assert codes == [ErrorCode.NONE] * 5, "the same id counts once"
        assert coordinator.statistics().id_count == 3


async def test_one_client_does_not_fill_the_limit_for_others() -> None:
    lab = Lab(TransactionConfig(retry_ms=1, client_id_count_max=2, id_expiration_ms=1_000))
    async with lab.coordinator() as coordinator:
        for name in ("a", "b"):
            assert await init(coordinator, name, "greedy", name) is ErrorCode.NONE
        assert await init(coordinator, "c", "greedy") is ErrorCode.POLICY_VIOLATION
        assert await init(coordinator, "a", "greedy") is ErrorCode.NONE, "its own it may keep"
        assert await init(coordinator, "c", "modest") is ErrorCode.NONE
        lab.clock.advance(1_000)
        coordinator.tick()
        await settled(coordinator, 0)
        assert await init(coordinator, "d", "greedy") is ErrorCode.NONE, "those that are gone"
