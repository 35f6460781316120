"""ShardFollower: an engine has exactly the shards of its node, whatever the cache has missed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from firnmq.adapter import Topic, TopicCatalog
from firnmq.adapter.forwarding import ShardFollower
from firnmq.config import TopicConfig
from firnmq.engines import ShardSpec
from firnmq.engines.catalog.segments import SegmentMeta, SegmentState
from firnmq.errors import NotLeader
from firnmq.meta import MetaCache, SqliteMetaStore
from firnmq.meta.records import SegmentRecord, ShardRecord, encode, segment_key, shard_key

_WAIT_S = 30.0
_TYPE = TopicConfig().storage_type


class Engine:
    """Holds shards by name, with their numbers."""

    def __init__(self, **held: int) -> None:
        self.held = dict(held)
        self.epochs: dict[str, int] = {}
        self.kept: dict[str, list[int]] = {}
        """The segments that are kept of shards of other nodes."""

    def list_shard(self) -> list[ShardSpec]:
        return [
            ShardSpec(name=name, uid=uid, config=TopicConfig()) for name, uid in self.held.items()
        ]

    def adopt(self, spec: ShardSpec) -> None:
        self.held.setdefault(spec.name, spec.uid)
        self.epochs.setdefault(spec.name, spec.epoch)

    def release(self, shard: str, epoch: int, refusal: NotLeader) -> None:
        if self.epochs.get(shard, 0) == epoch:
            self.held.pop(shard, None)
            self.epochs.pop(shard, None)

    def hold(self, spec: ShardSpec, metas: Sequence[SegmentMeta]) -> None:
        if spec.name not in self.held:
            self.kept[spec.name] = [meta.seq for meta in metas]

    def discard(self, spec: ShardSpec) -> None:
        self.held.pop(spec.name, None)
        self.kept.pop(spec.name, None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteMetaStore]:
    store = SqliteMetaStore(tmp_path / "meta.db")
    yield store
    store.close()


def _put(store: SqliteMetaStore, uid: int, leader: int = 1, epoch: int = 0) -> None:
    record = ShardRecord(name="id_0", uid=uid, active=0, leader=leader, epoch=epoch, topic_id="id")
    store.txn(puts={shard_key("id_0"): encode(record)})


def _put_segment(
    store: SqliteMetaStore, seq: int, *nodes: int, state: SegmentState = SegmentState.SEALED
) -> None:
    record = SegmentRecord(
        state=state,
        epoch=1,
        leader=nodes[0],
        replicas=nodes,
        isr=(),
        start=seq,
        end=seq + 1,
        created_ms=0,
    )
    store.txn(puts={segment_key("id_0", seq): encode(record)})


@contextmanager
def _following(store: SqliteMetaStore, engine: Any) -> Iterator[ShardFollower]:
    cache = MetaCache(store)
    catalog = TopicCatalog(store, cache)
    if catalog.registered("id") is None:
        catalog.begin_creation(
            Topic(name="t", topic_id="id", shard_count=1, config=TopicConfig(), created_ms=0)
        )
    follower = ShardFollower(1, cache, catalog, {_TYPE: engine}, lambda shards: None)
    try:
        yield follower
    finally:
        follower.close()
        cache.close()


def _follow(store: SqliteMetaStore, engine: Any) -> dict[str, int]:
    """What the engine holds once its follower has everything."""
    with _following(store, engine) as follower:
        assert follower.wait(store.range("").revision, _WAIT_S)
    held: dict[str, int] = engine.held
    return held


def test_a_shard_that_was_deleted_while_the_engine_was_opened_is_dropped(
    store: SqliteMetaStore,
) -> None:
    assert _follow(store, Engine(gone_0=7)) == {}


def test_a_shard_that_was_recreated_while_the_engine_was_opened_is_another_one(
    store: SqliteMetaStore,
) -> None:
    _put(store, 2)
    assert _follow(store, Engine(id_0=1)) == {"id_0": 2}


def test_a_node_keeps_the_segments_that_it_holds_of_other_nodes_shards(
    store: SqliteMetaStore,
) -> None:
    _put(store, 1, leader=2)
    for seq, nodes in enumerate([(1,), (2,), (3, 1)]):
        _put_segment(store, seq, *nodes)
    engine = Engine()
    assert _follow(store, engine) == {}
    assert engine.kept == {"id_0": [0, 2]}


def test_shards_with_more_replicas_are_left_to_the_replication(store: SqliteMetaStore) -> None:
    _put_segment(store, 0, 1, 2, state=SegmentState.ACTIVE)
    _put(store, 1)
    engine = Engine()
    assert _follow(store, engine) == {}
    _put(store, 1, leader=2, epoch=1)
    assert _follow(store, engine) == {}
    assert engine.kept == {}


def test_a_shard_that_moved_while_the_engine_was_opened_is_given_up(
    store: SqliteMetaStore,
) -> None:
    _put(store, 1, leader=2, epoch=1)
    _put_segment(store, 0, 1)
    engine = Engine(id_0=1)
    assert _follow(store, engine) == {}
    assert engine.kept == {"id_0": [0]}


def test_a_node_follows_a_shard_that_moves_to_and_fro(store: SqliteMetaStore) -> None:
    engine = Engine()
    with _following(store, engine) as follower:

        def settle() -> None:
            assert follower.wait(store.range("").revision, _WAIT_S)

        _put(store, 1)
        settle()
        assert engine.held == {"id_0": 1}
        # 1. It moves, and the sealed segment stays.
        _put_segment(store, 0, 1)
        _put(store, 1, leader=2, epoch=1)
        settle()
        assert (engine.held, engine.kept) == ({}, {"id_0": [0]})
        # 2. The leader there drops it by retention, and makes another one of its own.
        _put_segment(store, 1, 2)
        store.txn(deletes=[segment_key("id_0", 0)])
        settle()
        assert engine.kept == {"id_0": []}
        # 3. It comes back, and goes on under another epoch, of which this node learns at once.
        _put(store, 1, leader=1, epoch=2)
        settle()
        _put(store, 1, leader=1, epoch=4)
        settle()
        assert engine.epochs == {"id_0": 4}
        # 4. It is deleted.
        store.txn(deletes=[shard_key("id_0")])
        settle()
        assert (engine.held, engine.kept) == ({}, {})


def test_a_recreated_shard_is_another_one_if_its_deletion_was_not_told(
    store: SqliteMetaStore,
) -> None:
    engine = Engine()
    with _following(store, engine) as follower:
        for uid in (1, 2):  # As a cache tells it that compares itself with a snapshot.
            _put(store, uid)
            assert follower.wait(store.range("").revision, _WAIT_S)
            assert engine.held == {"id_0": uid}
