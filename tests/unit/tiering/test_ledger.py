"""What waits, what is here too and what is dead, as the metadata changes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.config import TopicConfig
from firnmq.engines.catalog.segments import Medium, SegmentState
from firnmq.engines.tiering.api import TierCopy
from firnmq.meta import MetaCache, SqliteMetaStore
from firnmq.meta.records import (
    GraveRecord,
    SegmentRecord,
    ShardRecord,
    TopicRecord,
    TopicState,
    encode,
    segment_key,
    shard_key,
    topic_key,
)
from firnmq.tiering.move.ledger import NOTHING, SegmentId, TierLedger

_SOON_S = 30.0
COPY = TierCopy(upload_id="0" * 16, key="k", started_ms=1)


class World:
    def __init__(self, path: Path) -> None:
        self.store = SqliteMetaStore(path / "meta.db")
        self.cache = MetaCache(self.store)
        self.changes = 0
        self.topic("a", tiering="on")

    def topic(self, name: str, state: TopicState = TopicState.READY, **options: object) -> None:
        dotted = {key.replace("_", "."): value for key, value in options.items()}
        record = TopicRecord(
            name=name,
            topic_id=f"id{name}",
            shard_count=1,
            options=TopicConfig.from_options(dotted).options(),
            created_ms=0,
            state=state,
        )
        shard = ShardRecord(name=f"id{name}_0", uid=1, active=0, start=7, topic_id=f"id{name}")
        self.put({topic_key(name): record, shard_key(shard.name): shard})

    def segment(self, seq: int, state: SegmentState, topic: str = "a", **fields: object) -> None:
        values = {"length": 100, "sealed_ms": 1_000 - seq, "end": 10, **fields}
        record = SegmentRecord(
            state=state, epoch=1, leader=1, replicas=(1,), isr=(), start=0, created_ms=0, **values
        )
        self.put({segment_key(f"id{topic}_0", seq): record})

    def put(self, records: dict, deletes: tuple[str, ...] = ()) -> None:
        encoded = {key: encode(record) for key, record in records.items()}
        self.cache.wait_for_revision(self.store.txn(puts=encoded, deletes=deletes), _SOON_S)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.cache.close()
    world.store.close()


def seqs(found: list) -> list[int]:
    return [at.seq for at, _ in found]


def test_it_begins_with_what_is_there_and_follows(world: World) -> None:
    world.segment(0, SegmentState.SEALED)
    ledger = TierLedger(world.cache)
    world.segment(1, SegmentState.SEALED, length=50)
    world.segment(2, SegmentState.ACTIVE)
    assert seqs(ledger.waiting()) == [0, 1], "the shard's own order, whatever the clock said"
    assert ledger.waiting_bytes() == 150
    world.segment(0, SegmentState.TIERED, tier=COPY)
    assert seqs(ledger.waiting()) == [1]
    assert ledger.shards_with_local_copies() == ["ida_0"]
    world.segment(0, SegmentState.TIERED, tier=COPY, is_local=False)
    assert ledger.shards_with_local_copies() == []
    totals = ledger.totals_by_topic()["ida"]
    assert (totals.tiered_segments, totals.tiered_bytes, totals.local_segments) == (1, 100, 0)
    assert ledger.totals() == totals
    assert set(ledger.totals_by_topic()) == {"ida"}


def test_what_is_deleted_is_dead_until_it_is_forgotten(world: World) -> None:
    ledger = TierLedger(world.cache)
    world.segment(0, SegmentState.DELETED, tier=COPY)
    world.segment(1, SegmentState.DELETED)
    assert ledger.dead_copies()[0][0] == SegmentId("ida_0", 0)
    assert len(ledger.dead_copies()) == 1
    world.put({}, (segment_key("ida_0", 0),))
    assert ledger.dead_copies() == []
    grave = GraveRecord(shard="ida_0", seq=3, tier=COPY, length=1, buried_ms=0)
    world.put({"tier_graves/ida_0/0000000003": grave})
    assert (ledger.graves(), ledger.grave_count()) == ([grave], 1)
    world.put({}, ("tier_graves/ida_0/0000000003",))
    assert ledger.grave_count() == 0


def test_only_tiered_topics_wait(world: World) -> None:
    ledger = TierLedger(world.cache)
    changes = []
    ledger.on_change = lambda: changes.append(ledger.waiting_bytes())
    world.topic("b")
    world.segment(0, SegmentState.SEALED, "b", tier=COPY)
    assert ledger.waiting() == []
    assert seqs(ledger.unwanted()) == [0]
    world.topic("b", tiering="on")
    assert seqs(ledger.waiting()) == [0]
    assert ledger.unwanted() == []
    assert changes[-1] == 100
    world.topic("b", TopicState.DELETING, tiering="on")
    assert ledger.waiting() == []
    assert {each.record.name for each in ledger.topics()} == {"a"}


def test_what_is_only_in_memory_does_not_wait(world: World) -> None:
    world.topic("m", storage_type="EngineMemory", memory_overflow="spill", tiering="on")
    ledger = TierLedger(world.cache)
    world.segment(0, SegmentState.SEALED, "m")
    assert ledger.waiting() == []
    world.segment(0, SegmentState.SEALED, "m", medium=Medium.FILE)
    assert seqs(ledger.waiting()) == [0]
    shard = ledger.shard("idm_0")
    assert shard is not None
    assert shard.start == 7


class _Leads:
    """The share of a node that leads some shards."""

    is_whole = False
    is_keeper = False

    def __init__(self, node: int) -> None:
        self.node = node

    def has(self, shard: ShardRecord) -> bool:
        return shard.leader == self.node


def test_a_node_of_a_cluster_is_told_of_the_shards_it_leads(world: World) -> None:
    """1. Segments of another leader's shard are not its business. 2. They are, once it leads."""
    ledger, gained = TierLedger(world.cache, _Leads(2)), []
    ledger.on_gained = lambda: gained.append(1)
    world.segment(0, SegmentState.SEALED)
    world.segment(1, SegmentState.TIERED, tier=COPY)
    world.segment(2, SegmentState.DELETED, tier=COPY)
    assert ledger.waiting() == ledger.dead_copies() == ledger.shards_with_local_copies() == []
    assert ledger.waiting_bytes() == 0
    assert ledger.totals() == NOTHING

    shard = ShardRecord(name="ida_0", uid=1, active=0, topic_id="ida", leader=2)
    world.put({shard_key("ida_0"): shard})
    assert gained
    assert seqs(ledger.waiting()) == [0]
    assert seqs(ledger.dead_copies()) == [2]
    assert ledger.shards_with_local_copies() == ["ida_0"]
    assert ledger.totals().tiered_segments == 1
