"""Making topics: two waits with their time-outs, and nothing half-made whatever happens."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from firnmq.adapter import Topic
from firnmq.config import TopicConfig
from firnmq.disk import run_blocking
from firnmq.errors import AlreadyExists, CreationTimedOut, StorageFailed, TopicNotFound
from firnmq.meta import CacheBehind, MetaShards
from firnmq.meta.records import SEGMENTS, SHARDS, TOPICS
from firnmq.record import NewRecord
from firnmq.server import LocalStore
from firnmq.testing import FakeClock
from tests.unit.adapter.dict_adapter import DictAdapter
from tests.unit.meta.gate import Gate

ENGINES = ["EngineSegment", "EngineRocksDB", "EngineMemory"]
_SHORT_S = 0.05


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = opened(tmp_path)
    yield store
    store.close()


def opened(path: Path) -> LocalStore:
    return LocalStore(path, clock=FakeClock(), background=False)


def create(store: LocalStore, engine: str = "EngineSegment", shards: int = 3) -> Topic:
    return run_blocking(store.manager.create_topic("t", shards, TopicConfig(storage_type=engine)))


def revision(store: LocalStore) -> int:
    return store.meta.range("").revision


def is_empty(store: LocalStore) -> bool:
    """Whether nothing is left of any topic, anywhere."""
    kept = [store.meta.range(prefix).entries for prefix in (TOPICS, SHARDS, SEGMENTS)]
    specs = [engine.list_shard() for engine in store.engines.values()]
    return not any(kept) and not any(specs) and not list((store.path).glob("segments/*"))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_topic_with_many_shards_is_three_transactions(store: LocalStore, engine: str) -> None:
    before = revision(store)
    create(store, engine, 2_000)
    assert revision(store) == before + 3, "registered, shards, ready"
    assert len(store.meta.range(SHARDS).entries) == 2_000
    before = revision(store)
    run_blocking(store.manager.delete_topic("t"))
    assert revision(store) <= before + 3
    assert is_empty(store)


def test_a_topic_that_does_not_come_up_in_time(store: LocalStore) -> None:
    store.catalog.wait_s = _SHORT_S
    with Gate(store.cache, upto=revision(store)), pytest.raises(CreationTimedOut) as caught:
        create(store)
    assert (caught.value.topic, caught.value.timeout_s) == ("t", _SHORT_S)
    assert is_empty(store)
    store.catalog.wait_s = 30
    assert create(store) == store.catalog.get("t"), "the name is free"


def test_shards_that_do_not_come_up_in_time(store: LocalStore) -> None:
    assert isinstance(store.state.catalog, MetaShards)
    store.state.catalog.wait_s = _SHORT_S
    with Gate(store.cache, upto=revision(store) + 1), pytest.raises(CreationTimedOut) as caught:
        create(store)
    assert "one of its shards did not come up" in str(caught.value)
    assert is_empty(store)
    store.state.catalog.wait_s = 30
    create(store)


def test_a_topic_that_is_not_seen_to_be_ready_in_time(store: LocalStore) -> None:
    store.catalog.wait_s = _SHORT_S
    with Gate(store.cache, upto=revision(store) + 2), pytest.raises(CreationTimedOut):
        create(store)
    assert is_empty(store)


async def test_a_cancelled_creation_is_undone_and_the_name_free(store: LocalStore) -> None:
    engine = store.engines["EngineSegment"]
    create_shards, reached, go = engine.create_shards, threading.Event(), threading.Event()

    def slow(names: Sequence[str], config: TopicConfig, topic_id: str | None = None) -> object:
        reached.set()
        go.wait()
        return create_shards(names, config, topic_id)

    engine.create_shards = slow  # type: ignore[method-assign,assignment]
    # 1. The caller gives up while the shards are being made.
    creation = asyncio.ensure_future(store.manager.create_topic("t", 3, TopicConfig()))
    await asyncio.get_running_loop().run_in_executor(None, reached.wait)
    creation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creation
    # 2. Until the thread has noticed, the name is taken.
    with pytest.raises(AlreadyExists):
        await store.manager.create_topic("t", 3, TopicConfig())
    # 3. Then nothing is left, and the name is free.
    go.set()
    engine.create_shards = create_shards  # type: ignore[method-assign]
    while True:
        with contextlib.suppress(AlreadyExists):
            topic = await store.manager.create_topic("t", 2, TopicConfig())
            break
        await asyncio.to_thread(threading.Event().wait, 0.001)
    assert sorted(spec.name for spec in engine.list_shard()) == topic.shard_names()
    assert len(store.meta.range(SHARDS).entries) == 2


async def test_a_cancelled_creation_with_a_users_adapter_is_undone(store: LocalStore) -> None:
    started = asyncio.Event()

    class Slow(DictAdapter):
        async def create_shard(self, shard: str, config: TopicConfig) -> None:
            await super().create_shard(shard, config)
            if shard.endswith("_1"):
                started.set()
                await asyncio.Event().wait()

    adapter = Slow()
    store.manager.register("Mine", lambda: adapter)
    config = TopicConfig(storage_type="Mine")
    creation = asyncio.ensure_future(store.manager.create_topic("t", 3, config))
    await started.wait()
    creation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creation
    assert adapter.shards == {}
    assert is_empty(store)


def test_a_topic_that_could_not_be_cleaned_up_does_not_keep_its_name(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = store.engines["EngineSegment"]

    def refuse(*_: object) -> None:
        raise StorageFailed("t", OSError(5, "Input/output error"))

    with monkeypatch.context() as patch:
        patch.setattr(store.catalog, "become_ready", refuse)
        patch.setattr(engine, "delete_shards", refuse)
        with pytest.raises(StorageFailed):
            create(store)
    assert len(engine.list_shard()) == 3
    topic = create(store, shards=2)
    assert sorted(spec.name for spec in engine.list_shard()) == topic.shard_names()


def test_a_deletion_that_is_unfinished_is_finished_by_upkeep_a_new_topic_or_at_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    for finisher in ("upkeep", "topic", "opening"):
        create(store)

        def refuse(*_: object) -> None:
            raise StorageFailed("t", OSError(5, "Input/output error"))

        with monkeypatch.context() as patch:
            patch.setattr(store.engines["EngineSegment"], "delete_shards", refuse)
            run_blocking(store.manager.delete_topic("t"))
            store.housekeep()
        with pytest.raises(TopicNotFound):
            store.catalog.get("t")
        assert not is_empty(store)
        if finisher == "upkeep":
            store.housekeep()
            assert is_empty(store)
        if finisher == "opening":
            store.close()
            store = opened(tmp_path)
            assert is_empty(store)
    create(store)
    store.close()


def test_shards_of_a_growth_that_was_interrupted_go_at_the_next_open(tmp_path: Path) -> None:
    store = opened(tmp_path)
    topic = create(store)
    extra = [topic.shard_name(seq) for seq in (3, 4)]
    store.engines["EngineSegment"].create_shards(extra, topic.config, topic.topic_id)
    store.close()
    store = opened(tmp_path)
    assert len(store.state.shards()) == 3
    grown = run_blocking(store.manager.grow_topic("t", 5))
    assert store.catalog.get("t") == grown
    assert len(store.state.shards()) == 5
    run_blocking(store.manager.delete_topic("t"))
    assert is_empty(store)
    store.close()


def test_other_options_are_one_transaction_and_survive(tmp_path: Path) -> None:
    store = opened(tmp_path)
    topic = create(store)
    run_blocking(store.manager.write("t", [NewRecord(value=b"v")], 0))
    before = revision(store)
    config = TopicConfig(retention_ms=5)
    run_blocking(store.manager.reconfigure_topic("t", config))
    assert revision(store) == before + 1
    engine = store.engines["EngineSegment"]
    assert engine.status(topic.shard_name(0)).spec.config == config
    assert engine.status(topic.shard_name(1)).spec.config == config
    store.close()
    store = opened(tmp_path)
    assert store.catalog.get("t").config == config
    assert {spec.config for spec in store.state.shards()} == {config}
    store.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_growth_that_failed_can_be_repeated(
    store: LocalStore, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store, engine)

    def be_late(revision: int, timeout_s: float) -> None:
        raise CacheBehind(revision - 1, revision, timeout_s)

    with monkeypatch.context() as patched:
        patched.setattr(store.cache, "wait_for_revision", be_late)
        with pytest.raises(CacheBehind):
            run_blocking(store.manager.grow_topic("t", 5))
    assert len(store.meta.range(SHARDS).entries) == 3, "nothing is left of it"
    grown = run_blocking(store.manager.grow_topic("t", 5))
    assert (grown.shard_count, len(store.meta.range(SHARDS).entries)) == (5, 5)


def test_shards_that_a_failed_growth_left_are_made_anew(store: LocalStore) -> None:
    topic = create(store)
    left = [topic.shard_name(seq) for seq in (3, 4)]
    store.engines["EngineSegment"].create_shards(left, topic.config, topic.topic_id)
    assert run_blocking(store.manager.grow_topic("t", 5)).shard_count == 5
    assert len(store.meta.range(SHARDS).entries) == 5
