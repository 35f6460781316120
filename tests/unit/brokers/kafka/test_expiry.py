"""Committed offsets expire: since the group is empty, or since the commit; and groups with them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from firnmq.adapter import CommittedOffset
from firnmq.brokers.kafka.expiry import OffsetExpiry
from firnmq.brokers.kafka.groups import (
    GroupConfig,
    GroupCoordinator,
    GroupProtocol,
    GroupState,
    JoinReply,
    JoinRequest,
    Leaver,
    LeaveRequest,
    SyncRequest,
)
from firnmq.brokers.kafka.offsets import GroupOffsets, KvGroupStore
from firnmq.brokers.kafka.producer_ids import ProducerIds
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.kafka.topic_names import TopicNames
from firnmq.brokers.kafka.transactions import (
    AddGroupRequest,
    CommitOffsetsRequest,
    EndRequest,
    InitRequest,
    KvTransactionStore,
    TransactionConfig,
    TransactionCoordinator,
)
from firnmq.config import TopicConfig
from firnmq.server import LocalStore
from firnmq.testing import FakeClock

DAY_MS = 24 * 3_600_000
SESSION_MS = 10_000


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names


class Node:
    """Groups, transactions and offsets over a real store, by a clock that the test moves."""

    def __init__(self, local: LocalStore, clock: FakeClock, config: GroupConfig) -> None:
        self.local = local
        self.clock = clock
        storage = KafkaStorage(local.manager)
        self.offsets = GroupOffsets(local.offsets)
        self.groups = GroupCoordinator(
            KvGroupStore(local.offset_rows),
            TopicNames(local.catalog),
            config=config,
            clock=clock,
            wall_clock=clock,
        )
        self.transactions = TransactionCoordinator(
            KvTransactionStore(local.offset_rows),
            storage,
            ProducerIds(local.kv).take,
            clock=clock,
            config=TransactionConfig(timeout_max_ms=30 * DAY_MS, id_expiration_ms=90 * DAY_MS),
        )
        self.expiry = OffsetExpiry(
            self.offsets,
            self.groups,
            self.transactions,
            local.catalog,
            clock=clock,
            config=config,
        )

    async def pass_days(self, days: float) -> None:
        """Time passes, and offsets that are due are looked for."""
        self.clock.advance(int(days * DAY_MS))
        await self.expiry.sweep()

    def shard(self, topic: str = "t") -> str:
        return self.local.catalog.get(topic).shard_name(0)

    async def commit(self, group: str = "g", topic: str = "t", offset: int = 5) -> None:
        entry = CommittedOffset(offset=offset, committed_ms=self.clock.now_ms())
        await self.offsets.commit(group, {self.shard(topic): entry})

    def committed(self, group: str = "g") -> set[str]:
        """Topics of which the group has an offset."""
        names = {topic.shard_name(0): topic.name for topic in self.local.catalog.topics()}
        return {names[shard] for shard in self.local.offsets.committed(group)}

    async def join(
        self, group: str = "g", *topics: str, protocol_type: str = "consumer"
    ) -> JoinReply:
        """A stable group of one member."""
        metadata = subscription(*topics)
        joined = await self.groups.join(
            group,
            JoinRequest(
                protocol_type=protocol_type,
                protocols=(GroupProtocol(name="range", metadata=metadata),),
                session_timeout_ms=1_800_000,
            ),
        )
        request = SyncRequest(member_id=joined.member_id, generation=joined.generation)
        assert (await self.groups.sync(group, request)).error is ErrorCode.NONE
        return joined

    def leave(self, joined: JoinReply, group: str = "g") -> None:
        leaver = Leaver(member_id=joined.member_id)
        self.groups.leave(group, LeaveRequest(members=(leaver,)))
        assert self.groups.describe(group).state is GroupState.EMPTY


@asynccontextmanager
async def opened(path: Path, clock: FakeClock, **limits: int) -> AsyncIterator[Node]:
    config = GroupConfig(initial_rebalance_delay_ms=0, **limits)
    local = LocalStore(path, clock=clock, background=False)
    try:
        for name in ("t", "u"):
            if name not in local.catalog.by_name:
                await local.manager.create_topic(name, 1, TopicConfig())
        node = Node(local, clock, config)
        async with node.groups, node.transactions:
            yield node
    finally:
        local.close()


def play(path: Path, *acts: Callable[[Node], Awaitable[None]], **limits: int) -> None:
    """Carries out each act on a node of its own: between two acts the node is restarted."""
    clock = FakeClock()

    async def main() -> None:
        for act in acts:
            async with opened(path, clock, **limits) as node:
                await act(node)

    asyncio.run(main())


def test_offsets_go_seven_days_after_the_group_is_empty(tmp_path: Path) -> None:
    async def leave(node: Node) -> None:
        joined = await node.join("g", "t")
        await node.commit()
        await node.pass_days(30)
        assert node.committed() == {"t"}, "the group is in use"
        node.leave(joined)
        await node.pass_days(6.9)
        assert node.committed() == {"t"}, "whatever the age of the commit"

    async def wait(node: Node) -> None:
        assert node.groups.describe("g").state is GroupState.EMPTY
        await node.pass_days(0.05)
        assert node.committed() == {"t"}
        await node.pass_days(0.06)
        assert node.committed() == set()
        assert "g" not in node.groups.group_ids(), "the group goes with its last offset"
        assert "g" not in await node.offsets.groups()

    async def look(node: Node) -> None:
        assert node.groups.group_ids() == []

    play(tmp_path, leave, wait, look)


def test_offsets_of_a_group_without_members_go_one_by_one(tmp_path: Path) -> None:
    async def commit(node: Node) -> None:
        await node.commit(topic="t")
        await node.pass_days(4)
        await node.commit(topic="u")

    async def wait(node: Node) -> None:
        await node.pass_days(2.9)
        assert node.committed() == {"t", "u"}
        await node.pass_days(0.2)
        assert node.committed() == {"u"}
        await node.commit(topic="u")
        await node.pass_days(6)
        assert node.committed() == {"u"}, "a commit begins anew"
        await node.pass_days(1)
        assert await node.offsets.groups() == []

    play(tmp_path, commit, wait)


def test_a_group_in_use_keeps_what_it_subscribes_to(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        for topic in ("t", "u"):
            await node.commit(topic=topic)
        await node.join("g", "u")
        await node.pass_days(6.9)
        assert node.committed() == {"t", "u"}
        await node.pass_days(0.2)
        assert node.committed() == {"u"}

    play(tmp_path, act)


@pytest.mark.parametrize("protocol_type", ["connect", "consumer"])
def test_what_is_not_known_to_be_useless_stays(tmp_path: Path, protocol_type: str) -> None:
    """A group that is in use, and does not tell which topics it reads."""

    async def act(node: Node) -> None:
        await node.commit()
        node.clock.advance(8 * DAY_MS)
        request = JoinRequest(
            protocol_type=protocol_type,
            protocols=(GroupProtocol(name="range", metadata=b"?"),),
            session_timeout_ms=1_800_000,
        )
        joined = await node.groups.join("g", request)
        await node.expiry.sweep()
        assert node.committed() == {"t"}, "while it rebalances"
        sync = SyncRequest(member_id=joined.member_id, generation=joined.generation)
        await node.groups.sync("g", sync)
        await node.expiry.sweep()
        assert node.committed() == {"t"}, "with bytes that are no subscription"

    play(tmp_path, act)


def test_an_offset_that_a_transaction_may_replace_stays(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        await node.commit()
        init = await node.transactions.init("x", InitRequest(timeout_ms=20 * DAY_MS))
        ids: dict[str, Any] = {"producer_id": init.producer_id, "epoch": init.epoch}
        assert not await node.transactions.add_group("x", AddGroupRequest(group="g", **ids))
        offsets = {
            node.shard(): CommittedOffset(offset=9, committed_ms=node.clock.now_ms()),
        }
        request = CommitOffsetsRequest(group="g", offsets=offsets, **ids)
        assert not await node.transactions.commit_offsets("x", request)
        await node.pass_days(8)
        assert node.committed() == {"t"}
        assert not await node.transactions.end("x", EndRequest(is_commit=False, **ids))
        await node.expiry.sweep()
        assert node.committed() == set()

    play(tmp_path, act)


def test_a_commit_of_the_same_moment_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that comes while an old one is judged is stored after it, or judged itself."""

    async def act(node: Node) -> None:
        await node.commit(offset=1)
        node.clock.advance(8 * DAY_MS)
        judge = OffsetExpiry._judge
        tasks = []

        def judge_slowly(expiry: OffsetExpiry, *args: Any) -> Any:
            is_due = judge(expiry, *args)
            loop = asyncio.get_running_loop()

            def decide(shard: str, entry: CommittedOffset) -> bool:
                begun = asyncio.run_coroutine_threadsafe(begin_commit(), loop)
                begun.result(60)
                return is_due(shard, entry)

            return decide

        async def begin_commit() -> None:
            tasks.append(asyncio.create_task(node.commit(offset=2)))

        monkeypatch.setattr(OffsetExpiry, "_judge", judge_slowly)
        await node.expiry.sweep()
        for task in tasks:
            await task
        (entry,) = node.local.offsets.committed("g").values()
        assert entry.offset == 2

    play(tmp_path, act)


def test_a_clock_that_is_set_back_neither_stalls_nor_hurries(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        node.leave(await node.join("g", "t"))
        for group in ("g", "simple"):
            await node.commit(group)
        node.clock.set_back(365 * DAY_MS)
        await node.pass_days(6.9)
        assert node.committed() == node.committed("simple") == {"t"}
        await node.expiry.sweep()
        await node.pass_days(7)
        assert node.committed() == node.committed("simple") == set()
        for group in ("g", "simple"):
            await node.commit(group)
        node.clock.set_back(30 * DAY_MS)
        await node.expiry.sweep()
        node.clock.set_forward(30 * DAY_MS)
        await node.pass_days(6.9)
        assert node.committed() == node.committed("simple") == {"t"}, "right again"
        await node.pass_days(0.2)
        assert node.committed() == node.committed("simple") == set()

    play(tmp_path, act)


def test_a_clock_that_is_set_forward_for_hours_takes_nothing(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        node.leave(await node.join("g", "t"))
        for group in ("g", "simple"):
            await node.commit(group)
        await node.expiry.sweep()
        node.clock.set_forward(30 * DAY_MS)
        await node.expiry.sweep()
        await node.pass_days(0.9)
        assert node.committed() == node.committed("simple") == {"t"}
        node.clock.set_back(30 * DAY_MS)
        await node.pass_days(6)
        assert node.committed() == node.committed("simple") == {"t"}
        await node.pass_days(0.2)
        assert node.committed() == node.committed("simple") == set()

    play(tmp_path, act)


def test_a_clock_that_stays_forward_is_believed(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        node.leave(await node.join("g", "t"))
        await node.commit()
        node.clock.set_forward(30 * DAY_MS)
        for _ in range(3):
            await node.pass_days(0.3)
            assert node.committed() == {"t"}
        await node.pass_days(0.2)
        assert node.committed() == set()

    play(tmp_path, act)


def test_a_group_that_made_room_keeps_its_offsets_as_long(tmp_path: Path) -> None:
    async def act(node: Node) -> None:
        joined = await node.join("g", "t")
        await node.commit()
        node.clock.advance(5 * DAY_MS)
        node.leave(joined)
        await node.join("other", "t")
        assert node.groups.group_ids() == ["other"]

    async def wait(node: Node) -> None:
        await node.pass_days(6.9)
        assert node.committed() == {"t"}, "it had a member until then"
        await node.pass_days(0.2)
        assert node.committed() == set()

    play(tmp_path, act, wait, group_count_max=1)
