"""ShardFollower: an engine has exactly the shards of its node, whatever the cache has missed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firnmq.adapter import Topic, TopicCatalog
from firnmq.adapter.forwarding import ShardFollower
from firnmq.config import TopicConfig
from firnmq.engines import ShardSpec
from firnmq.meta import MetaCache, SqliteMetaStore
from firnmq.meta.records import ShardRecord, encode, shard_key

_WAIT_S = 30.0
_TYPE = TopicConfig().storage_type


class Engine:
    """Holds shards by name, with their numbers."""

    def __init__(self, **held: int) -> None:
        self.held = dict(held)

    def list_shard(self) -> list[ShardSpec]:
        return [
            ShardSpec(name=name, uid=uid, config=TopicConfig()) for name, uid in self.held.items()
        ]

    def adopt(self, spec: ShardSpec) -> None:
        self.held.setdefault(spec.name, spec.uid)

    def discard(self, shard: str) -> None:
        self.held.pop(shard, None)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteMetaStore]:
    store = SqliteMetaStore(tmp_path / "meta.db")
    yield store
    store.close()


def _put(store: SqliteMetaStore, uid: int, leader: int = 1) -> None:
    record = ShardRecord(name="id_0", uid=uid, active=0, leader=leader, topic_id="id")
    store.txn(puts={shard_key("id_0"): encode(record)})


def _follow(store: SqliteMetaStore, engine: Any) -> dict[str, int]:
    """What the engine holds once its follower has everything."""
    cache = MetaCache(store)
    catalog = TopicCatalog(store, cache)
    if catalog.registered("id") is None:
        catalog.begin_creation(
            Topic(name="t", topic_id="id", shard_count=1, config=TopicConfig(), created_ms=0)
        )
    follower = ShardFollower(1, cache, catalog, {_TYPE: engine}, lambda shards: None)
    try:
        assert follower.wait(store.range("").revision, _WAIT_S)
    finally:
        follower.close()
        cache.close()
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


def test_a_recreated_shard_is_another_one_if_its_deletion_was_not_told(
    store: SqliteMetaStore,
) -> None:
    engine = Engine()
    cache = MetaCache(store)
    catalog = TopicCatalog(store, cache)
    catalog.begin_creation(
        Topic(name="t", topic_id="id", shard_count=1, config=TopicConfig(), created_ms=0)
    )
    engines: Any = {_TYPE: engine}
    follower = ShardFollower(1, cache, catalog, engines, lambda shards: None)
    try:
        for uid in (1, 2):  # As a cache tells it that compares itself with a snapshot.
            _put(store, uid)
            assert follower.wait(store.range("").revision, _WAIT_S)
            assert engine.held == {"id_0": uid}
    finally:
        follower.close()
        cache.close()
