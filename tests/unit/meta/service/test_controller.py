"""The controller's work on topics: whole or gone, and only under its key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from firnmq.config import TopicConfig
from firnmq.engines.catalog.segments import SegmentState
from firnmq.errors import StorageFailed
from firnmq.meta import Compare, MetaCache, Session, SqliteMetaStore, register_node
from firnmq.meta.api import CompareField
from firnmq.meta.records import (
    SEGMENTS,
    SHARDS,
    TOPICS,
    Replica,
    SegmentRecord,
    ShardRecord,
    TopicRecord,
    TopicState,
    decode,
    encode,
    topic_key,
)
from firnmq.meta.service.controller import (
    CREATION_S,
    NodeLoad,
    Replaced,
    TopicWork,
    fewest_leaders,
)
from firnmq.meta.service.election import CONTROLLER_KEY
from firnmq.testing import FakeClock

_SOON_S = 60.0
_OPS = 20
"""Of one transaction: 8 shards fit, so that most topics need several."""


class _Store(SqliteMetaStore):
    """Fails before a transaction that is to come."""

    txn_ops_max = _OPS
    left: int | None = None

    def txn(
        self,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Sequence[str] = (),
        session: Session | None = None,
    ) -> int:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise StorageFailed("the meta store", OSError("out of reach"))
        return super().txn(compares, puts, deletes, session)


class Given:
    def __init__(self, path: Path) -> None:
        self.clock = FakeClock()
        self.store = _Store(path, clock=self.clock)
        self.cache = MetaCache(self.store)
        self.work = TopicWork(self.store, self.cache, self.clock, fewest_leaders)
        self.guard = self.elect("first")

    def elect(self, name: str) -> Compare:
        self.store.txn(deletes=[CONTROLLER_KEY])
        revision = self.store.txn(puts={CONTROLLER_KEY: name.encode()})
        return Compare(key=CONTROLLER_KEY, revision=revision, field=CompareField.CREATE)

    def register(self, *nodes: int) -> None:
        for node in nodes:
            register_node(self.store, node, self.clock)

    def put(self, name: str, state: TopicState = TopicState.CREATING, count: int = 20) -> str:
        topic_id = f"{abs(hash(name)):032x}"[-32:]
        record = TopicRecord(
            name=name,
            topic_id=topic_id,
            shard_count=count,
            options=TopicConfig().options(),
            created_ms=0,
            state=state,
            is_placed=True,
        )
        self.store.txn(puts={topic_key(name): encode(record)})
        return topic_id

    def step(self, guard: Compare | None = None) -> None:
        self.cache.wait_for_revision(self.store.range("none").revision, _SOON_S)
        self.work.step(guard or self.guard)

    def topic(self, name: str) -> TopicRecord | None:
        entry = self.store.get(topic_key(name))
        return None if entry is None else decode(entry, TopicRecord)

    def shards(self) -> list[ShardRecord]:
        return [decode(each, ShardRecord) for each in self.store.range(SHARDS).entries]

    def segments(self) -> list[SegmentRecord]:
        return [decode(each, SegmentRecord) for each in self.store.range(SEGMENTS).entries]


@pytest.fixture
def given(tmp_path: Path) -> Iterator[Given]:
    given = Given(tmp_path / "meta.db")
    yield given
    given.cache.close()
    given.store.close()


def test_a_topic_gets_shards_with_segments_on_living_nodes(given: Given) -> None:
    given.register(1, 2, 3)
    topic_id = given.put("t", count=20)
    given.step()
    topic = given.topic("t")
    assert topic is not None
    assert (topic.state, topic.was_ready) == (TopicState.READY, True)
    assert {each.name for each in given.shards()} == {f"{topic_id}_{seq}" for seq in range(20)}
    assert len({each.uid for each in given.shards()}) == 20
    counts = [sum(each.leader == node for each in given.segments()) for node in (1, 2, 3)]
    assert sorted(counts) == [6, 7, 7]
    assert {each.isr for each in given.segments()} == {(Replica(node, 1),) for node in (1, 2, 3)}


@pytest.mark.parametrize("left", range(5))
def test_a_pass_that_is_interrupted_anywhere_is_finished_by_the_next(
    given: Given, left: int
) -> None:
    given.register(1)
    given.put("t", count=20)
    given.store.left = left
    try:
        given.step()
    except StorageFailed:
        pass
    given.store.left = None
    topic = given.topic("t")
    assert topic is not None
    assert topic.state is (TopicState.READY if left >= 4 else TopicState.CREATING)
    given.step()
    assert len(given.shards()) == len(given.segments()) == 20
    assert len({each.uid for each in given.shards()}) == 20


@pytest.mark.parametrize("state", [TopicState.CREATING, TopicState.DELETING])
def test_a_controller_that_was_replaced_changes_nothing(given: Given, state: TopicState) -> None:
    given.register(1)
    given.put("t", state)
    given.elect("second")
    before = given.store.range("")
    with pytest.raises(Replaced):
        given.step(given.guard)
    assert given.store.range("") == before


def test_a_topic_for_which_there_is_no_node_waits_and_is_then_removed(given: Given) -> None:
    given.put("t")
    given.step()
    given.clock.advance(int(CREATION_S * 1000) - 1)
    given.step()
    waiting = given.topic("t")
    assert waiting is not None
    assert waiting.state is TopicState.CREATING
    given.clock.advance(1)
    given.step()
    given.step()
    assert given.topic("t") is None


@pytest.mark.parametrize("left", range(4))
def test_of_a_topic_that_its_creator_gave_up_nothing_is_left(given: Given, left: int) -> None:
    given.register(1)
    topic_id = given.put("t")
    given.store.left = left
    try:
        given.step()
    except StorageFailed:
        pass
    given.store.left = None
    assert given.put("t", TopicState.DELETING) == topic_id
    given.step()
    assert (given.shards(), given.segments(), given.topic("t")) == ([], [], None)
    assert given.store.range(TOPICS).entries == ()


def test_a_topic_with_records_goes_when_its_nodes_have_removed_them(given: Given) -> None:
    given.register(1, 2)
    given.put("t", count=12)
    given.step()
    topic = given.topic("t")
    assert topic is not None
    going = TopicRecord(
        **{**{f: getattr(topic, f) for f in topic.__struct_fields__}, "state": TopicState.DELETING}
    )
    given.store.txn(puts={topic_key("t"): encode(going)})
    # 1. Its segments are marked, once.
    given.step()
    given.step()
    assert {(each.state, each.epoch) for each in given.segments()} == {(SegmentState.DELETED, 1)}
    # 2. Nodes remove bytes, then records.
    keys = [entry.key for entry in given.store.range(SEGMENTS).entries]
    given.store.txn(deletes=keys[:5])
    given.step()
    assert len(given.shards()) == 12
    given.store.txn(deletes=keys[5:])
    given.step()
    assert (given.shards(), given.topic("t")) == ([], None)


def test_topics_that_a_node_makes_are_left_to_it(given: Given) -> None:
    given.register(1)
    topic_id = given.put("t")
    entry = given.store.get(topic_key("t"))
    assert entry is not None
    record = decode(entry, TopicRecord)
    own = TopicRecord(
        **{**{f: getattr(record, f) for f in record.__struct_fields__}, "is_placed": False}
    )
    given.store.txn(puts={topic_key("t"): encode(own)})
    before = given.store.range("")
    given.step()
    assert given.store.range("") == before
    assert topic_id


def test_leaders_even_out() -> None:
    nodes = [
        NodeLoad(replica=Replica(1, 1), leader_count=5),
        NodeLoad(replica=Replica(2, 4), leader_count=2),
        NodeLoad(replica=Replica(3, 2), leader_count=2),
    ]
    chosen = [each.node for each in fewest_leaders(nodes, 8)]
    assert [chosen.count(node) for node in (1, 2, 3)] == [1, 4, 3]
    assert fewest_leaders(nodes, 0) == []
