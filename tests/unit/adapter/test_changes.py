"""Changes of one topic at the same time: none is lost, and its shards have the topic's options."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firnmq.adapter import EngineStorageAdapter, Topic
from firnmq.config import Durability, StoreConfig, TopicConfig
from firnmq.disk import run_blocking
from firnmq.errors import AlreadyExists, StorageFailed, TimedOut, TooManyShards, TopicNotFound
from firnmq.meta.records import SHARDS, TOPICS
from firnmq.record import NewRecord
from firnmq.server import LocalStore
from firnmq.testing import FakeClock

LOOSE = TopicConfig(durability=Durability.OS)
STRICT = TopicConfig(durability=Durability.FSYNC)
SHARD_COUNT_MAX = 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(
        tmp_path,
        clock=FakeClock(),
        background=False,
        config=StoreConfig(shard_count_max=SHARD_COUNT_MAX),
    )
    yield store
    store.close()


def create(store: LocalStore, name: str = "t", shards: int = 3) -> Topic:
    return run_blocking(store.manager.create_topic(name, shards, LOOSE))


def reconfigure(store: LocalStore, config: TopicConfig) -> Topic:
    return run_blocking(store.manager.reconfigure_topic("t", config))


def options_of_shards(store: LocalStore) -> set[TopicConfig]:
    """What the shards of the topic run with: as known to the engine, and in their open logs."""
    topic = store.catalog.get("t")
    engine = store.engines[topic.config.storage_type]
    names = set(topic.shard_names())
    known = {spec.config for spec in engine.list_shard() if spec.name in names}
    return known | {engine.status(shard).spec.config for shard in names}


def once(act: Callable[[], object]) -> Callable[[], None]:
    """Calls `act` the first time only: what it does may come back here."""
    is_done = False

    def maybe() -> None:
        nonlocal is_done
        if not is_done:
            is_done = True
            act()

    return maybe


def test_shards_made_while_options_change_have_the_new_ones(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store)
    driver = store.manager.driver_of("t")
    assert isinstance(driver, EngineStorageAdapter)
    make, interrupt = driver.create_shards, once(lambda: reconfigure(store, STRICT))

    async def make_and_be_interrupted(*args: object) -> None:
        await make(*args)  # type: ignore[arg-type]
        interrupt()

    monkeypatch.setattr(driver, "create_shards", make_and_be_interrupted)
    grown = run_blocking(store.manager.grow_topic("t", 6))
    assert (grown.shard_count, grown.config) == (6, STRICT)
    assert store.catalog.get("t") == grown
    assert options_of_shards(store) == {STRICT}


def test_a_change_that_reaches_the_shards_late_does_not_undo_a_newer_one(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create(store)
    run_blocking(store.manager.write("t", [NewRecord(value=b"v")], 0))
    engine = store.engines[topic.config.storage_type]
    apply, interrupt = engine.reconfigure, once(lambda: reconfigure(store, STRICT))

    def be_overtaken(*args: object) -> None:
        interrupt()
        apply(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "reconfigure", be_overtaken)
    reconfigure(store, TopicConfig(durability=Durability.INTERVAL))
    assert store.catalog.get("t").config == STRICT
    assert options_of_shards(store) == {STRICT}


def test_changes_of_different_options_at_once_are_all_kept(store: LocalStore) -> None:
    create(store)

    def longer(config: TopicConfig) -> TopicConfig:
        overtake()
        return config.with_options({"retention.ms": 5_000})

    def larger(config: TopicConfig) -> TopicConfig:
        return config.with_options({"segment.bytes": 1_000_000})

    overtake = once(lambda: run_blocking(store.manager.reconfigure_topic("t", larger)))
    changed = run_blocking(store.manager.reconfigure_topic("t", longer))
    assert (changed.config.retention_ms, changed.config.segment_bytes) == (5_000, 1_000_000)
    assert store.catalog.get("t") == changed
    assert options_of_shards(store) == {changed.config}


def test_a_topic_made_again_under_the_name_keeps_its_own_options(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create(store)
    engine = store.engines[topic.config.storage_type]
    apply = engine.reconfigure

    def replace_topic() -> None:
        run_blocking(store.manager.delete_topic("t"))
        create(store)

    interrupt = once(replace_topic)

    def be_too_late(*args: object) -> None:
        interrupt()
        apply(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "reconfigure", be_too_late)
    with pytest.raises(TopicNotFound):
        reconfigure(store, STRICT)
    assert store.catalog.get("t").topic_id != topic.topic_id
    assert store.catalog.get("t").config == LOOSE
    assert options_of_shards(store) == {LOOSE}


def test_a_change_of_a_topic_made_again_is_of_the_new_one_alone(store: LocalStore) -> None:
    old = create(store)

    def replace_topic() -> None:
        run_blocking(store.manager.delete_topic("t"))
        create(store)

    interrupt = once(replace_topic)

    def stricter(config: TopicConfig) -> TopicConfig:
        interrupt()
        return STRICT

    changed = run_blocking(store.manager.reconfigure_topic("t", stricter))
    assert changed.topic_id != old.topic_id
    assert options_of_shards(store) == {STRICT}


def test_shards_follow_a_change_whose_commit_reported_an_error(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store)
    commit = store.meta.txn

    def report_an_error(*args: object) -> int:
        commit(*args)  # type: ignore[arg-type]
        raise StorageFailed("the metadata", OSError("a sync failed"))

    with monkeypatch.context() as patched:
        patched.setattr(store.meta, "txn", report_an_error)
        with pytest.raises(StorageFailed):
            reconfigure(store, STRICT)
    store.cache.wait_for_revision(store.meta.range(TOPICS).revision, 30)
    assert store.catalog.get("t").config == STRICT
    store.housekeep()
    assert options_of_shards(store) == {STRICT}


def test_a_caller_that_goes_away_leaves_no_shard_behind(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create(store)
    engine = store.engines[topic.config.storage_type]
    apply = engine.reconfigure
    has_begun, may_go_on = threading.Event(), threading.Event()

    def hesitate(*args: object) -> None:
        has_begun.set()
        assert may_go_on.wait(30)
        apply(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "reconfigure", hesitate)

    async def main() -> None:
        change = asyncio.create_task(store.manager.reconfigure_topic("t", STRICT))
        await asyncio.to_thread(has_begun.wait, 30)
        change.cancel()
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await change

    asyncio.run(main())  # Waits for the threads it has started.
    assert options_of_shards(store) == {STRICT}


def test_a_deletion_waits_for_a_growth_and_growths_for_each_other(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store)
    driver = store.manager.driver_of("t")
    assert isinstance(driver, EngineStorageAdapter)
    make = driver.create_shards
    has_begun, may_go_on = threading.Event(), threading.Event()

    async def hesitate(*args: object) -> None:
        has_begun.set()
        assert may_go_on.wait(30)
        await make(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(driver, "create_shards", hesitate)

    async def main() -> None:
        grow = asyncio.create_task(store.manager.grow_topic("t", 5))
        await asyncio.to_thread(has_begun.wait, 30)
        grow_more = asyncio.create_task(store.manager.grow_topic("t", 7))
        store.catalog.wait_s = 0.01
        with pytest.raises(TimedOut, match="another change of topic 't' is under way"):
            await store.manager.delete_topic("t")
        with pytest.raises(TimedOut):
            await grow_more
        store.catalog.wait_s = 30
        delete = asyncio.create_task(store.manager.delete_topic("t"))
        asyncio.get_running_loop().call_soon(may_go_on.set)
        assert (await grow).shard_count == 5
        await delete

    asyncio.run(main())
    assert not store.meta.range(TOPICS).entries
    assert not store.meta.range(SHARDS).entries


# How many shards there may be ---------------------------------------------------------------------


def test_no_more_shards_than_the_node_may_have(store: LocalStore) -> None:
    create(store, shards=12)
    before = store.meta.range("").revision
    with pytest.raises(TooManyShards) as caught:
        create(store, "other", 9)
    assert (caught.value.wanted, caught.value.there, caught.value.limit) == (9, 12, 20)
    assert "9 shards beside the 12 of other topics are more than the 20" in str(caught.value)
    assert "shard_count_max in [store]" in str(caught.value)
    with pytest.raises(TooManyShards):
        create(store, "huge", 100_000)
    with pytest.raises(TooManyShards):
        run_blocking(store.manager.grow_topic("t", 21))
    assert store.meta.range("").revision == before, "nothing was begun"
    create(store, "other", 8)
    with pytest.raises(TooManyShards):
        run_blocking(store.manager.grow_topic("t", 13))
    run_blocking(store.manager.delete_topic("other"))
    assert run_blocking(store.manager.grow_topic("t", 20)).shard_count == 20
    with pytest.raises(AlreadyExists):
        run_blocking(store.manager.create_topic("t", 1, LOOSE))


def test_shards_that_are_being_made_count(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two topics that fit one by one do not fit at the same time."""
    register = store.catalog.begin_creation
    refused = []

    def refuse_another() -> None:
        with pytest.raises(TooManyShards) as caught:
            create(store, "second", 11)
        refused.append(caught.value.there)

    interrupt = once(refuse_another)

    def be_interrupted(topic: Topic) -> None:
        interrupt()
        register(topic)

    monkeypatch.setattr(store.catalog, "begin_creation", be_interrupted)
    create(store, "first", 10)
    assert refused == [10]
    assert create(store, "second", 10).shard_count == 10
